"""Chosen steps of a run as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing. Pure; torch-free.

Ranks are processes; a step is a slice that holds its stages, and a stage one that holds its parts. Times are those that
the result has: one MoE layer, and what stands around it, each once, however often the model holds it. So the durations
of a rank's stages sum to its ``stages_us`` and ``idle_us``. Format: "Trace Event Format" (Google, 2016).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench_worker.errors import SpecError, shown
from bench_worker.result import RankSteps, Run, Steps
from bench_worker.scaling import IDLE, top

__all__ = ["MOST_STEPS", "chosen_steps", "trace"]

MOST_STEPS = 1000
#: Stages in the order in which a step goes through them; its waiting is at the end of the layer.
ORDER = ("attention", "route", "permute", "dispatch", "experts", "combine", IDLE, "other")


def trace(run: Run, chosen: str) -> dict[str, Any]:
    """The ``chosen`` steps of ``run`` (`chosen_steps`), one after the other, as a document of trace events. ``ts`` and
    ``dur`` are in µs. A step begins on all ranks at once, when the slowest has ended the one before.

    Raises `SpecError` for a run without times, and as `chosen_steps` does.
    """
    if run.steps is None:
        raise SpecError("run", run.variant, f"{run.variant} at {run.condition} has no times, so no trace")
    places = chosen_steps(chosen, len(run.steps.index))
    events = [event for rank in run.steps.ranks for event in _process(rank.rank)]
    start = 0.0
    for place in places:
        ends = [start]
        for rank in run.steps.ranks:
            slices = list(_stages(rank, place, start))
            end = max((one["ts"] + one["dur"] for one in slices), default=start)
            events += [_step(run.steps, rank, place, start, end), *slices]
            ends.append(end)
        start = max(ends)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "variant": run.variant,
            "condition": run.condition,
            "model": run.spec.model,
            "held_by_the_model": run.scale.counts,
            "origins": run.origins,
        },
    }


def chosen_steps(text: str, count: int) -> list[int]:
    """Places of steps from ``text`` such as ``0,5-9``, in that order. Raises `SpecError` for text that isn't one, for
    places that a run of ``count`` steps does not have, and for more than `MOST_STEPS`."""
    places: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        bounds = [first, last] if dash else [first]
        if not all(bound.isascii() and bound.isdecimal() and len(bound) < 10 for bound in bounds):
            raise SpecError("steps", text, f"{shown(text)} names no steps; it must be like 0,5-9")
        low, high = int(bounds[0]), int(bounds[-1])
        if low > high or high >= count:
            raise SpecError(
                "steps", text, f"{part.strip()} is not within the run's steps, which are 0 to {count - 1:,}"
            )
        if len(places) + high - low + 1 > MOST_STEPS:
            raise SpecError("steps", text, f"{shown(text)} names more than {MOST_STEPS:,} steps, the most of a trace")
        places += range(low, high + 1)
    return places


def _process(rank: int) -> Iterator[dict[str, Any]]:
    common = {"ph": "M", "pid": rank, "tid": 0}
    yield {**common, "name": "process_name", "args": {"name": f"rank {rank}"}}
    yield {**common, "name": "process_sort_index", "args": {"sort_index": rank}}
    yield {**common, "name": "thread_name", "args": {"name": "stages"}}


def _step(steps: Steps, rank: RankSteps, place: int, start: float, end: float) -> dict[str, Any]:
    args = {
        "place": place,
        "prefill_tokens": steps.prefill_tokens[place],
        "decode_tokens": steps.decode_tokens[place],
        "whole_model_step_us": steps.step_us[place],
        "assignments": rank.assignments[place],
        "rows": rank.rows[place],
        **{f"{domain}_bytes": sent[place] for domain, sent in rank.bytes.items()},
    }
    return _slice(f"step {steps.index[place]}", "step", rank.rank, start, end - start, args)


def _stages(rank: RankSteps, place: int, start: float) -> Iterator[dict[str, Any]]:
    """Slices of the stages that took time, each before those of its parts."""
    times = {stage: us[place] for stage, us in rank.stages_us.items()} | {IDLE: rank.idle_us[place]}
    for stage in ORDER:
        if times.get(stage):
            yield _slice(stage, "stage", rank.rank, start, times[stage])
            within = start
            for part in (name for name in times if top(name) == stage and name != stage and times[name]):
                yield _slice(part, "part", rank.rank, within, times[part])
                within += times[part]
            start += times[stage]


def _slice(
    name: str, kind: str, rank: int, start: float, duration: float, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "cat": kind, "pid": rank, "tid": 0, "ts": start, "dur": duration, "args": args or {}
    }  # fmt: skip
