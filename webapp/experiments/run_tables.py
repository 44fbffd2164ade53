"""Every step and every request of one run: the columns of their tables, and the requests over time (pure).

Shapes: ``S`` steps, ``n`` requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench_worker.result import Requests, Scale, Steps
from webapp.experiments.present import step_stages_ms
from webapp.ui.charts import token
from webapp.ui.formatting import MISSING, count, duration_ms
from webapp.ui.tables import Column

#: Of `Requests` what a page of them reads: never the gaps between tokens, of which there may be millions.
READ = tuple(name for name in Requests.model_fields if name != "itl_ms")
#: What happens to a request, in order, with its colour. No stage's: a stage is part of a step.
PHASES = {"waiting": "hatched var(--line-strong)", "prefill": token("series-2"), "decode": token("series-3")}


def step_columns(steps: Steps, scale: Scale) -> list[Column]:
    """What each step computed and how long it took, whole and by stage, in the whole model."""
    start_ms = _starts_ms(steps)
    passes = _passes([index == 0 for index in steps.index])
    whole = [
        ("step", "Step", steps.index, count),
        ("start", "Start", start_ms, duration_ms),
        ("prefill", "Prefill", steps.prefill_tokens, count),
        ("decode", "Decode", steps.decode_tokens, count),
        ("assignments", "Assignments", steps.assignments, count),
        ("dropped", "Dropped", steps.dropped, count),
        ("time", "Time", np.array(steps.step_us) / 1000, duration_ms),
    ]
    if passes[-1] > 1:
        whole.insert(0, ("pass", "Pass", passes, count))
    columns = [Column(key, title, np.asarray(values, float), show) for key, title, values, show in whole]
    by_stage = {
        stage: Column(stage, stage, np.array(ms), duration_ms, stage=stage)
        for stage, ms in step_stages_ms(steps, scale).items()
    }
    return [*(column for column in columns if column.key != "dropped" or column.values.any()), *by_stage.values()]


def request_columns(requests: Mapping[str, Any]) -> list[Column]:
    """What each request asked for and got. ``requests``: what `READ` names of `Requests`."""
    passes = request_passes(requests)
    columns = [
        Column("request", "Request", _numbers(requests), count),
        Column("arrival", "Arrival", _values(requests["arrival_ms"]), duration_ms),
        Column("prompt", "Prompt tokens", _values(requests["prompt_tokens"]), count),
        Column("output", "Output tokens", _values(requests["output_tokens"]), count),
        Column("ttft", "TTFT", _values(requests["ttft_ms"]), duration_ms),
        Column("tpot", "TPOT", _values(requests["tpot_ms"]), duration_ms),
        Column("e2e", "End to end", _values(requests["e2e_ms"]), duration_ms),
    ]
    if passes[-1] > 1:
        columns.insert(0, Column("pass", "Pass", passes, count))
    if requests["wait_ms"] is not None:
        columns.insert(-3, Column("waited", "Waited", _values(requests["wait_ms"]), duration_ms))
    if requests["preempted_ms"] is not None:
        preempted = np.array([len(times) for times in requests["preempted_ms"]], float)
        columns.append(Column("preempted", "Preempted", preempted, lambda times: count(times) if times else MISSING))
    return columns


def over_time(requests: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
    """A bar for each request at ``places``, from its arrival to its last token, and a cross where it was preempted.
    Where it isn't recorded when a request was taken up, all of its time to first token counts as prefill."""
    labels = _labels(requests, places)
    arrival = [requests["arrival_ms"][place] for place in places]
    waited = [0.0 if requests["wait_ms"] is None else requests["wait_ms"][place] for place in places]
    first, last = ([requests[name][place] for place in places] for name in ("ttft_ms", "e2e_ms"))
    bounds = dict(zip(PHASES, (([0.0] * len(places), waited), (waited, first), (first, last)), strict=True))
    datasets: list[dict[str, Any]] = [
        {
            "label": phase,
            "data": [[came + a, came + b] for came, a, b in zip(arrival, *bounds[phase], strict=True)],
            "backgroundColor": colour,
        }
        for phase, colour in PHASES.items()
    ]
    crosses = [
        {"x": requests["arrival_ms"][place] + ms, "y": label}
        for label, place in zip(labels, places, strict=True)
        for ms in (requests["preempted_ms"] or {place: []})[place]
    ]
    if crosses:
        mark = {"pointStyle": "crossRot", "pointRadius": 5, "borderWidth": 2, "borderColor": token("bad")}
        datasets.insert(0, {"type": "scatter", "label": "preempted", "data": crosses, **mark})
    return {
        "type": "bar",
        "data": {"labels": labels, "datasets": datasets},
        "options": {
            "unit": "ms",
            "indexAxis": "y",
            "interaction": {"mode": "index", "axis": "y", "intersect": False},
            "datasets": {"bar": {"categoryPercentage": 1.0, "barPercentage": 0.7}},
            "scales": {
                "x": {"min": min(arrival, default=0.0), "ticks": {"maxRotation": 0, "autoSkipPadding": 24}},
                "y": {"stacked": True, "grid": {"display": False}, "title": {"display": True, "text": "request"}},
            },
            "plugins": {"legend": {"labels": {"usePointStyle": True}}},
        },
    }


def _labels(requests: Mapping[str, Any], places: Sequence[int]) -> list[str]:
    """What tells each request from all others: its place in the trace and, with several passes, the pass."""
    numbers, passes = _numbers(requests), request_passes(requests)
    several = passes[-1] > 1
    return [f"{count(numbers[place])}{f', pass {passes[place]}' if several else ''}" for place in places]


def request_passes(requests: Mapping[str, Any]) -> np.ndarray:
    """The pass, from 1, that each request belongs to: in each, requests stand in the order of the trace. Where their
    places in it are not recorded, all count as one."""
    numbers = _numbers(requests)
    return _passes([True, *(numbers[1:] <= numbers[:-1])])


def _passes(begins: Sequence[bool]) -> np.ndarray:
    return np.cumsum(begins)


def _starts_ms(steps: Steps) -> np.ndarray:
    """When each step began, [S]: as recorded or, back to back, counted in each pass from 0."""
    if steps.start_us is not None:
        return np.array(steps.start_us) / 1000
    took = np.array(steps.step_us)
    before = np.cumsum(took) - took
    passes = _passes([index == 0 for index in steps.index])
    first = np.searchsorted(passes, passes)  # where the pass of each step begins
    return np.asarray((before - before[first]) / 1000)


def _numbers(requests: Mapping[str, Any]) -> np.ndarray:
    """Of each request its place in the trace; where that isn't recorded, in the result."""
    recorded = requests["request"]
    return _values(range(len(requests["e2e_ms"])) if recorded is None else recorded)


def _values(values: Sequence[float | None]) -> np.ndarray:
    """[n], NaN for what a request has none of."""
    return np.array(values, float)
