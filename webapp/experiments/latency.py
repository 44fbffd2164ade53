"""What users feel: latency distributions, goodput, and the steps behind a p95 (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bench_worker.result import Scale, Steps, Summary
from webapp.experiments.present import LATENCIES, step_stages_ms
from webapp.experiments.tails import Tail, tails
from webapp.ui import formatting
from webapp.ui.charts import line_style

#: Of every request one value: what a curve is drawn of.
CURVES = ("ttft_ms", "tpot_ms", "e2e_ms")
#: What `section` reads of a run: never the gaps between tokens, of which there may be millions.
READ = ("variant", "condition", "position", "summary", "spec__workload__limits",
        *(f"requests__{metric}" for metric in CURVES))  # fmt: skip
#: More points than this are closer together than a pixel.
MAX_POINTS = 200
#: Steps that the table behind a p95 lists.
MAX_STEPS = 50


class Curve(NamedTuple):
    """The share of requests that took at most so long, a line a run."""

    id: str
    title: str
    config: dict[str, Any]
    label: str


class Row(NamedTuple):
    """A run by its variant or its corner. ``missed``: where no request met all limits, how near the best came to each,
    else empty."""

    name: str
    position: int
    summary: Summary
    missed: str


@dataclass(frozen=True)
class Felt:
    """Runs of ``corner``, or of all corners where there is one variant. ``limits``: those of the experiment in words,
    empty where it sets none."""

    corner: str
    corners: list[str]
    curves: list[Curve]
    rows: list[Row]
    limits: str


def section(runs: Iterable[Mapping[str, Any]], corners: Sequence[str], corner: str, *, by_corner: bool) -> Felt | None:
    """``runs``: what `READ` names of each. None where no request has a latency."""
    named = "condition" if by_corner else "variant"
    timed = [run for run in runs if run["requests__e2e_ms"]]
    if not timed:
        return None
    lines = {
        metric: {
            run[named]: values
            for run in timed
            if (values := [value for value in run[f"requests__{metric}"] if value is not None])
        }
        for metric in CURVES
    }
    return Felt(
        corner=corner,
        corners=[] if by_corner else list(corners),
        curves=[_curve(metric, values) for metric, values in lines.items() if values],
        rows=[
            Row(run[named], run["position"], summary, _missed(run) if summary.goodput_per_s == 0 else "")
            for run in timed
            for summary in [Summary.model_validate(run["summary"])]
        ],
        limits=limits_in_words(timed[0]["spec__workload__limits"] or {}),
    )


def limits_in_words(limits: Mapping[str, float | None]) -> str:
    """``TTFT at most 200 ms, TPOT at most 50.0 ms``; empty without limits."""
    return ", ".join(
        f"{name.removesuffix('_ms').upper()} at most {formatting.duration_ms(limit)}"
        for name, limit in limits.items()
        if limit is not None
    )


def _missed(run: Mapping[str, Any]) -> str:
    """``TTFT 3.10 s, TPOT 1.52 s``: of each latency with a limit the shortest."""
    limited = [metric for metric, limit in run["spec__workload__limits"].items() if limit is not None]
    found = {metric: [ms for ms in run[f"requests__{metric}"] if ms is not None] for metric in limited}
    return ", ".join(
        f"{metric.removesuffix('_ms').upper()} {formatting.duration_ms(min(values))}"
        for metric, values in found.items()
        if values
    )


def ecdf(values: Sequence[float], most: int = MAX_POINTS) -> list[tuple[float, float]]:
    """Points of the empirical distribution, in order: at each value, the share of values that are no larger. It starts
    at 0 with the least; of many values, at most ``most`` are kept, evenly, the largest among them."""
    ordered = np.sort(np.asarray(values, dtype=float))
    count = len(ordered)
    kept = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))
    return [(float(ordered[0]), 0.0), *((float(ordered[place]), float((place + 1) / count)) for place in kept)]


def _curve(metric: str, lines: Mapping[str, Sequence[float]]) -> Curve:
    title = next(name for name, field in LATENCIES.items() if field == metric)
    datasets = [
        {
            "label": name,
            "data": [{"x": x, "y": y} for x, y in ecdf(values)],
            "pointRadius": 0,
            "stepped": "before",
            **line_style(place),
        }
        for place, (name, values) in enumerate(lines.items())
    ]
    config = {
        "type": "line",
        "data": {"datasets": datasets},
        "options": {
            "unit": "percent",
            "xUnit": "ms",
            "interaction": {"mode": "nearest", "intersect": False},
            "scales": {
                "x": {"type": "linear", "ticks": {"maxRotation": 0, "autoSkipPadding": 24}},
                "y": {"min": 0, "max": 1},
            },
            "plugins": {"legend": {"labels": {"usePointStyle": True, "pointStyle": "line"}}},
        },
    }
    return Curve(f"ecdf-{metric}", title, config, f"{title}: share of requests that took at most so long")


class Step(NamedTuple):
    """``stages_ms``: by stage, in the order of `Behind.stages`."""

    number: int
    prefill_tokens: int
    decode_tokens: int
    ms: float
    stages_ms: list[float]


@dataclass(frozen=True)
class Behind:
    """The tails of one run, and of the ``chosen`` one the first steps."""

    tails: list[Tail]
    chosen: Tail
    stages: list[str]
    steps: list[Step]


def behind(summary: Summary, steps: Steps, scale: Scale, metric: str) -> Behind | None:
    """The steps behind the p95 of ``metric``, or of the first that has any. None where none has."""
    found = tails(summary)
    if not found:
        return None
    chosen = next((tail for tail in found if tail.metric == metric), found[0])
    stages_ms = step_stages_ms(steps, scale)
    return Behind(
        tails=found,
        chosen=chosen,
        stages=list(stages_ms),
        steps=[
            Step(
                number=steps.index[place],
                prefill_tokens=steps.prefill_tokens[place],
                decode_tokens=steps.decode_tokens[place],
                ms=steps.step_us[place] / 1000,
                stages_ms=[values[place] for values in stages_ms.values()],
            )
            for place in chosen.found.steps[:MAX_STEPS]
        ],
    )
