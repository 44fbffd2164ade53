"""How steady an experiment's runs were, how near they came to the machine's limit, and which kernels ran (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench_worker import noise
from bench_worker.kernels.rules import bare
from bench_worker.noise import AWAY, DRIFT, MIN_SAMPLES, MODE_GAP, NOISY_SPREAD
from bench_worker.result import STAGES, Around, Choice, GraphTimes, Limit, Noise, Summary

#: What `section` reads of a run.
READ = ("variant", "condition", "summary", "noise", "choices", "refused", "graphs")
#: Graphics processors, by name, on which tests/gpu/check.sh has passed for this version.
VERIFIED_GPUS: frozenset[str] = frozenset()

#: The rule of each label, in one line; docs/measurement.md has the whole.
RULES = {
    "steady": f"No trend, no two separate groups, and a spread of at most {NOISY_SPREAD:.0%}.",
    "noisy": f"A step's time spreads by more than {NOISY_SPREAD:.0%} (robust standard deviation).",
    "drifting": f"Steps went one way, and the last quarter differs from the first by {DRIFT:.0%} or more.",
    "bimodal": f"Step times fall into two separate groups, {MODE_GAP:.0%} or more apart.",
    "contended": "The machine's memory bus or matrix rate, whichever sets the time of the run, was more than "
    f"{AWAY:.0%} away from what it was calibrated at, or moved by more: others use it too.",
    "unknown": f"Fewer than {MIN_SAMPLES} steps can be compared with others of as many tokens.",
}


@dataclass(frozen=True)
class Judged:
    """A timed run against the machine; ``limits`` stand in the order of the section's stages."""

    variant: str
    condition: str
    summary: Summary
    noise: Noise | None
    limits: list[Limit | None]

    @property
    def rule(self) -> str:
        """The rule of the run's label, in one line."""
        return RULES[self.noise.label] if self.noise else ""

    @property
    def around(self) -> Around | None:
        """What the machine gave around the run, if anybody looked."""
        return self.noise.around if self.noise else None

    @property
    def warning(self) -> str | None:
        """Why its times don't compare with those of another time."""
        return noise.sentence(self.noise) if self.noise else None


class Tried(NamedTuple):
    """What ``auto`` chose at one size of step, with the times of its candidates in the order of the table."""

    choice: Choice
    times_us: list[float | None]


@dataclass(frozen=True)
class Chosen:
    """What ``auto`` did in one variant."""

    variant: str
    candidates: list[str]
    sizes: list[Tried]


@dataclass(frozen=True)
class Section:
    """``refused``: backends that ``auto`` could not take, and why."""

    runs: list[Judged]
    stages: list[str]
    chosen: list[Chosen]
    refused: dict[str, str]
    graphs: list[tuple[Judged, GraphTimes]]
    unverified: bool

    @property
    def has_limits(self) -> bool:
        return any(limit for run in self.runs for limit in run.limits)

    @property
    def has_idle(self) -> bool:
        return any(run.summary.device_idle_share is not None for run in self.runs)

    @property
    def has_around(self) -> bool:
        return any(run.around for run in self.runs)

    @property
    def warned(self) -> list[Judged]:
        return [run for run in self.runs if run.warning]

    @property
    def sentence(self) -> str:
        """How many runs were steady, and what the others were."""
        labels: Counter[str] = Counter(run.noise.label for run in self.runs if run.noise is not None)
        total = labels.total()
        if not total:
            return "These runs don't tell how steady they were."
        if labels["unknown"] == total:
            return f"Too few steps to say how steady the run{'s were' if total > 1 else ' was'}."
        if labels["steady"] == total:
            return "The run was steady." if total == 1 else f"All {total} runs were steady."
        others = [f"{labels[label]} {label}" for label in RULES if label != "steady" and labels[label]]
        return f"{labels['steady']} of {total} runs were steady, {', '.join(others)}."


def section(runs: Sequence[Mapping[str, Any]], environment: Mapping[str, Any]) -> Section | None:
    """``runs``: what a result says of each; None where none has times. ``environment``: the machine's."""
    timed = [run for run in runs if run["summary"] is not None]
    if not timed:
        return None
    summaries = [Summary.model_validate(run["summary"]) for run in timed]
    stages = [stage for stage in STAGES if any(stage in summary.limits for summary in summaries)]
    judged = [
        Judged(
            variant=run["variant"],
            condition=run["condition"],
            summary=summary,
            noise=run["noise"] and Noise.model_validate(run["noise"]),
            limits=[summary.limits.get(stage) for stage in stages],
        )
        for run, summary in zip(timed, summaries, strict=True)
    ]
    return Section(
        runs=judged,
        stages=stages,
        chosen=_chosen(timed),
        refused={name: bare(reason) for run in timed for name, reason in run["refused"].items()},
        graphs=[
            (judge, GraphTimes.model_validate(run["graphs"]))
            for judge, run in zip(judged, timed, strict=True)
            if run["graphs"]
        ],
        unverified=is_unverified(environment),
    )


def is_unverified(environment: Mapping[str, Any]) -> bool:
    """Whether the machine measures on a GPU for which no check has passed."""
    return not {gpu["name"] for gpu in environment.get("gpus", [])} <= VERIFIED_GPUS


def _chosen(runs: Sequence[Mapping[str, Any]]) -> list[Chosen]:
    """The choices of each variant, which its runs at all corners share."""
    by_variant = {run["variant"]: list(map(Choice.model_validate, run["choices"])) for run in runs if run["choices"]}
    found = []
    for variant, choices in by_variant.items():
        candidates = sorted({name for choice in choices for name in choice.layer_us})
        sizes = [Tried(choice, [choice.layer_us.get(name) for name in candidates]) for choice in choices]
        found.append(Chosen(variant, candidates, sizes))
    return found


class Floor(NamedTuple):
    """A stage of one run, or a part of one, against its floor."""

    name: str
    stage: str
    is_part: bool
    us: float
    limit: Limit


def floors(summary: Summary) -> list[Floor]:
    """Every stage that has a floor, in order, each followed by its parts."""
    found = [
        Floor(name, name.partition(".")[0], "." in name, summary.stage_us[name], limit)
        for name, limit in summary.limits.items()
        if name in summary.stage_us
    ]
    return sorted(found, key=lambda floor: (STAGES.index(floor.stage), floor.is_part))
