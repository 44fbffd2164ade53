"""What the experiment page shows, computed from rows and documents (pure)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Any, NamedTuple

from bench_worker.result import STAGES, Distribution, Noise, Requests, Scale, Steps, Summary
from bench_worker.spec import Experiment, Spec
from bench_worker.spec_rules import flat
from webapp.experiments import charts, origins

#: The stage that a rank has a column of its own for.
IDLE = "idle"
#: What `seen` reads of a run.
SEEN = ("variant", "condition", "status", "summary", "position", "noise", "origins")
#: What the measuring program does in each of its phases.
PHASES = {
    "prepare": "making weights",
    "check": "checking against the reference",
    "warmup": "warming up",
    "measure": "measuring",
    "calibrate": "measuring what the machine can do at best",
    "tune": "measuring what auto may choose from",
    "sizes": "measuring every backend, one number of tokens after the other",
    "write": "writing the result",
}


@dataclass(frozen=True)
class Seen:
    """A run whose summary is known. ``position`` is its place in the result; None while the rest is measured, as is
    ``noise``."""

    variant: str
    condition: str
    status: str
    summary: Summary | None
    layer_scale: float
    position: int | None = None
    noise: Noise | None = None
    #: Of its whole-model times; empty while the rest is measured.
    origin: str = ""

    @property
    def mark(self) -> str:
        """The origin of a whole-model time."""
        return origins.mark(self.origin, self.layer_scale)

    @property
    def stages_ms(self) -> dict[str, float]:
        """Milliseconds of the mean step by stage: they add up to it."""
        if self.summary is None:
            return {}
        share, mean = self.summary.stage_share, self.summary.step_us.mean
        return {stage: share[stage] * mean / 1000 for stage in STAGES if share.get(stage)}


@dataclass(frozen=True)
class Matrix:
    """Variants × conditions; a cell is None until its run is there."""

    conditions: list[str]
    rows: list[tuple[str, list[Seen | None]]]
    #: The origin marks that stand in it: by how much times scale, and those of modelled networks with their words.
    marks: list[str]
    networks: list[tuple[str, str]]


class Part(NamedTuple):
    """A stage's part of the mean step."""

    ms: float
    share: float


class BarRow(NamedTuple):
    label: str
    run: Seen
    parts: list[Part]


class Whole(NamedTuple):
    """What is 100% of a chart: the mean step of the variant ``name``, in ms. Its axis ends at ``most``."""

    name: str
    ms: float
    most: float


@dataclass(frozen=True)
class Bars:
    """Stacked bars that share a scale, and the table of the same numbers: a row a bar, a column a stage."""

    id: str
    title: str
    label: str
    stages: list[str]
    rows: list[BarRow]
    config: dict[str, Any]
    #: The variant whose mean step is 100%; empty where each chart has a scale of its own.
    against: str = ""

    @property
    def size(self) -> str:
        """The chart's height, as the page names it: it grows with the number of bars."""
        return "low" if len(self.rows) <= 4 else "" if len(self.rows) <= 10 else "tall"


def seen(plan: Sequence[Mapping[str, Any]], runs: Iterable[Mapping[str, Any]]) -> list[Seen]:
    """The finished runs of a plan. ``runs``: variant, condition, status, summary and, once stored, position."""
    scale = {(planned["variant"], planned["condition"]): planned["layer_scale"] for planned in plan}
    return [
        Seen(
            variant=run["variant"],
            condition=run["condition"],
            status=run["status"],
            summary=run["summary"] and Summary.model_validate(run["summary"]),
            layer_scale=scale[run["variant"], run["condition"]],
            position=run.get("position"),
            noise=Noise.model_validate(run["noise"]) if run.get("noise") else None,
            origin=run.get("origins", {}).get("step_us", ""),
        )
        for run in runs
    ]


def matrix(plan: Sequence[Mapping[str, Any]], runs: Iterable[Seen]) -> Matrix:
    """Every planned run in its place, measured or not yet."""
    found = {(run.variant, run.condition): run for run in runs}
    conditions = list(dict.fromkeys(planned["condition"] for planned in plan))
    variants = dict.fromkeys(planned["variant"] for planned in plan)
    return Matrix(
        marks=origins.scales(run.layer_scale for run in found.values()),
        networks=origins.networks(run.origin for run in found.values()),
        conditions=conditions,
        rows=[(variant, [found.get((variant, condition)) for condition in conditions]) for variant in variants],
    )


def bars(runs: Sequence[Seen], non_causal: Container[str] = (), base: str = "") -> list[Bars]:
    """Where the time goes. Several variants: a chart a corner, a bar a variant, all on one scale: the mean step of the
    variant ``base`` at that corner is 100%; in milliseconds, each corner on its own scale, where one of the corners has
    no such run. One variant: a single chart of shares, a bar a corner. Variants that are ``non_causal`` are marked as
    such."""
    timed = [run for run in runs if run.summary is not None]
    corners = list(dict.fromkeys(run.condition for run in timed))
    if len({run.variant for run in timed}) == 1:
        return [_bars("stages", "", "Share of each stage in the mean step, one bar a corner", "condition", timed, ())]
    at = {corner: [run for run in timed if run.condition == corner] for corner in corners}
    wholes = {run.condition: sum(run.stages_ms.values()) for run in timed if run.variant == base}
    if wholes and set(corners) <= set(wholes):
        most = max(sum(run.stages_ms.values()) / wholes[run.condition] for run in timed)
    else:
        wholes, most, base = {}, 1.0, ""
    return [
        _bars(
            f"stages-{number}",
            corner,
            f"Mean step at {corner} by stage{f', against that of {base}' if base else ''}, one bar a variant",
            "variant",
            at[corner],
            non_causal,
            Whole(base, wholes[corner], ceil(most * 20) / 20) if base else None,
        )
        for number, corner in enumerate(corners)
    ]


def _bars(
    id: str,
    title: str,
    label: str,
    named_by: str,
    runs: list[Seen],
    non_causal: Container[str],
    whole: Whole | None = None,
) -> Bars:
    """Without a ``whole``, variants are drawn in milliseconds, and corners each as its own whole."""
    stages = [stage for stage in STAGES if any(stage in run.stages_ms for run in runs)]
    rows = []
    for run in runs:
        ms = run.stages_ms
        parts = [Part(ms.get(stage, 0.0), ms.get(stage, 0.0) / sum(ms.values())) for stage in stages]
        rows.append(BarRow(getattr(run, named_by), run, parts))
    as_shares = named_by == "condition"
    values = [
        (
            f"{row.label} (non-causal)" if row.label in non_causal else row.label,
            {
                stage: part.share if as_shares else part.ms / (whole.ms if whole else 1)
                for stage, part in zip(stages, row.parts, strict=True)
            },
        )
        for row in rows
    ]
    config = charts.stage_bars(values, "percent" if as_shares or whole else "ms", whole.most if whole else 1)
    against = whole.name if whole else ""
    return Bars(id, title, f"{label}; the table below has the numbers.", stages, rows, config, against)


@dataclass(frozen=True)
class Now:
    """How far a running experiment is. ``percent`` and ``left_s`` are None until steps are measured."""

    doing: str
    percent: int | None
    left_s: float | None


def now(progress: Mapping[str, Any], at: datetime) -> Now:
    """From the worker's last progress event; ``left_s`` is what the rest takes at the pace so far."""
    if not progress:
        return Now("starting the measuring program", None, None)
    steps = progress.get("steps")
    doing = PHASES.get(progress["phase"], progress["phase"])
    if progress["phase"] == "measure" and steps:
        doing = f"step {steps['done']:,} of {steps['total']:,}"
    names = (("variant", "variant"), ("condition", "corner"))
    doing = ", ".join([doing, *(f"{name} {progress[key]}" for key, name in names if progress.get(key))])
    if not steps:
        return Now(doing, None, None)
    done, total = steps["done"], steps["total"]
    elapsed_s = at.timestamp() - steps["since"]
    left_s = elapsed_s * (total - done) / done if 0 < done < total and elapsed_s > 0 else None
    return Now(doing, round(100 * done / max(total, 1)), left_s)


def step_stages_ms(steps: Steps, scale: Scale) -> dict[str, list[float]]:
    """Each stage's part of every step, in milliseconds, on the first rank, with what it waits: Σ count · time over its
    parts."""
    rank = steps.ranks[0]
    parts: dict[str, list[float]] = {}
    for leaf, count in scale.counts.items():
        stage = leaf.partition(".")[0]
        before = parts.get(stage, [0.0] * len(steps.index))
        times = rank.idle_us if leaf == IDLE else rank.stages_us[leaf]
        parts[stage] = [ms + count * us / 1000 for ms, us in zip(before, times, strict=True)]
    return {stage: parts[stage] for stage in STAGES if stage in parts}


@dataclass(frozen=True)
class Timeline:
    """Drawn are ``shown`` of ``steps``."""

    config: dict[str, Any]
    shown: int
    steps: int
    label: str = "Time of each step, stacked by stage; the table below has the medians."


def timeline(steps: Steps, scale: Scale) -> Timeline:
    """The steps one after the other; where there are too many to draw, the slowest of every stretch."""
    kept = charts.keep_peaks(steps.step_us)
    stages = {stage: [values[i] for i in kept] for stage, values in step_stages_ms(steps, scale).items()}
    config = charts.timeline([steps.index[i] for i in kept], stages)
    return Timeline(config=config, shown=len(kept), steps=len(steps.index))


class StageRow(NamedTuple):
    """``held``: how often the whole model holds it, for what is counted by itself; ``share``: for whole stages."""

    name: str
    stage: str
    is_part: bool
    us: float
    held: int | None
    share: float | None


def stage_rows(summary: Summary, scale: Scale) -> list[StageRow]:
    """Median times of one layer's stages, each followed by its parts."""
    return [
        StageRow(
            name=name,
            stage=name.partition(".")[0],
            is_part="." in name,
            us=us,
            held=scale.counts.get(name),
            share=summary.stage_share.get(name),
        )
        for name, us in sorted(summary.stage_us.items(), key=lambda item: _place(item[0]))
    ]


def _place(name: str) -> tuple[int, bool]:
    """A stage before its parts, which stay in their own order."""
    return STAGES.index(name.partition(".")[0]), "." in name


LATENCIES = {"Time to first token": "ttft_ms", "Time per output token": "tpot_ms", "Between tokens": "itl_ms",
             "End to end": "e2e_ms"}  # fmt: skip


def latencies(summary: Summary) -> list[tuple[str, Distribution | None]]:
    return [(name, getattr(summary, field)) for name, field in LATENCIES.items()]


def first_requests(requests: Requests, limit: int = 20) -> list[dict[str, Any]]:
    """The first requests of a run as rows of a table; ``request`` is its place in the trace, else in the result."""
    columns = ("arrival_ms", "prompt_tokens", "output_tokens", "ttft_ms", "tpot_ms", "e2e_ms")
    numbers = requests.request or range(len(requests.e2e_ms))
    return [
        {"request": numbers[place]} | {name: getattr(requests, name)[place] for name in columns}
        for place in range(min(limit, len(requests.e2e_ms)))
    ]


def asked(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every field that the experiment sets, by its dotted name: what differs from the defaults, and the rest."""
    # constructed, not validated: the defaults alone need not make an experiment that runs
    default = Experiment.model_construct(base=Spec(model=document["base"]["model"])).document()
    usual = flat(default["base"] | {"measure": default["measure"]})
    values = flat(document["base"] | {"measure": document["measure"]})
    differs = {name: value for name, value in values.items() if value != usual[name] or name == "model"}
    rest = {name: value for name, value in values.items() if name not in differs}
    return differs, rest
