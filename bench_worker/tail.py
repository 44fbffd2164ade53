"""Which steps make a slow request slow, and why. Pure.

The request at a percentile of a metric is the fastest of those at or above it. Its time is split by what happened to it
in each step: it waited to be admitted, its prompt was computed, its KV cache had been preempted, it decoded beside
another's prefill, or beside decodes alone. What took most of the time is the cause, and the steps are those in which it
happened. Of decodes, TPOT and ITL count only what is above the pace of this run, the median step that decodes alone:
the rest is what every request pays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from bench_worker.serving import RequestMetrics, Timeline, request_metrics, step_times

__all__ = ["Metric", "Tail", "tail"]

Metric = Literal["ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"]
Cause = Literal["waiting", "prompt", "preempted", "prefill", "decode"]

#: Requests in the way that a sentence names.
NAMED = 3


@dataclass(frozen=True)
class Tail:
    """The ``request`` at a percentile of a metric, with its value in ms; ``steps`` are positions in all passes, one
    after the other, and ``reason`` says in words what happened there."""

    request: int
    value_ms: float
    steps: list[int]
    reason: str


class _Sample(NamedTuple):
    """A value of the metric: which pass and request it is of, and which of its gaps, for ITL."""

    value_ms: float
    timeline: int
    request: RequestMetrics
    gap: int | None = None


class _Happened(NamedTuple):
    """What one step did to a request, and for how long, in µs."""

    cause: Cause
    step: int
    took_us: float


def tail(metric: Metric, timelines: Sequence[Timeline], percentile: float = 95.0) -> Tail | None:
    """The steps behind ``percentile`` (linear interpolation) of ``metric`` over the finished requests of all passes.
    ITL takes every gap at or above it, the other metrics one request. None where the metric has no value."""
    samples = [
        sample
        for place, timeline in enumerate(timelines)
        for request in request_metrics(*timeline)
        for sample in _samples(metric, place, request)
    ]
    if not samples:
        return None
    bound = np.percentile([sample.value_ms for sample in samples], percentile)
    beyond = sorted((s for s in samples if s.value_ms >= bound), key=lambda s: s.value_ms) or [
        max(samples, key=lambda s: s.value_ms)  # the interpolation rounded above the largest
    ]
    chosen = beyond[0]
    timeline = timelines[chosen.timeline]
    offset = sum(len(earlier.step_us) for earlier in timelines[: chosen.timeline])
    lives = _Lives(timeline)
    spans = [lives.between(s.request.request, metric, s.gap) for s in beyond if s.timeline == chosen.timeline]
    happened = {one.step: one for span in (spans if metric == "itl_ms" else spans[:1]) for one in span}
    cause, steps = _cause(list(happened.values()), metric, _pace_us(timeline))
    reason = _reason(cause, steps, metric, timeline, chosen.request)
    return Tail(chosen.request.request, chosen.value_ms, [offset + step for step in steps], reason)


def _samples(metric: Metric, place: int, request: RequestMetrics) -> list[_Sample]:
    if metric == "itl_ms":
        return [_Sample(gap_ms, place, request, gap) for gap, gap_ms in enumerate(request.itl_ms)]
    value_ms = getattr(request, metric)
    return [] if value_ms is None else [_Sample(value_ms, place, request)]


class _Lives:
    """What happened to each request of a pass, step by step."""

    def __init__(self, timeline: Timeline) -> None:
        batches = timeline.batches
        self._start, self._end = step_times(*timeline[:3])
        self._arrival_us, self._batches = timeline.arrival_us, batches
        self._prefills = np.array([batch.prefill_tokens > 0 for batch in batches])
        self._arrived = {request: step for step, batch in enumerate(batches) for request in batch.arrivals.tolist()}
        self._preempted = {request for batch in batches for request in batch.preempted.tolist()}
        step = np.repeat(np.arange(len(batches)), [len(batch.table) for batch in batches])
        table = np.concatenate([batch.table for batch in batches])
        order = np.lexsort((step, table[:, 0]))
        self._request, self._step, self._decodes = table[order, 0], step[order], table[order, 2] > 0
        self._yields = np.concatenate([batch.yields for batch in batches])[order]

    def between(self, request: int, metric: Metric, gap: int | None) -> list[_Happened]:
        """The steps that ``metric`` of a finished request spans: up to its first token, after it, all, or one gap."""
        own = slice(*np.searchsorted(self._request, [request, request + 1]))
        tokens = self._step[own][self._yields[own]]
        arrived = self._arrived[request]
        begin, end = {
            "ttft_ms": (arrived, tokens[0]), "tpot_ms": (tokens[0] + 1, tokens[-1]), "e2e_ms": (arrived, tokens[-1])
        }.get(metric) or (tokens[gap] + 1, tokens[gap + 1])  # type: ignore[operator]  # fmt: skip
        decodes = dict(zip(self._step[own].tolist(), self._decodes[own].tolist(), strict=True))
        admitted = min(decodes)
        found = []
        if begin == arrived and arrived and self._arrival_us is not None:  # it may have come during a step
            early_us = float(self._end[arrived - 1] - self._arrival_us[request])
            found = [_Happened("waiting", arrived - 1, early_us)] if early_us > 0 else []
        for step in range(begin, end + 1):
            cause: Cause = "waiting" if step < admitted or request not in self._preempted else "preempted"
            if decodes.get(step):
                cause = "prefill" if self._prefills[step] else "decode"
            elif step in decodes and step <= tokens[0]:
                cause = "prompt"
            found.append(_Happened(cause, step, float(self._end[step] - self._start[step])))
        return found


def _pace_us(timeline: Timeline) -> float:
    """The median step that only decodes; 0 where there is none."""
    alone = [us for batch, us in zip(timeline.batches, timeline.step_us, strict=True) if not batch.prefill_tokens]
    return float(np.median(alone)) if alone else 0.0


def _cause(happened: list[_Happened], metric: Metric, pace_us: float) -> tuple[Cause, list[int]]:
    """What took most of the time, and in which steps."""
    took: Counter[Cause] = Counter()
    steps: dict[Cause, list[int]] = {}
    for one in happened:
        steps.setdefault(one.cause, []).append(one.step)
        if one.cause not in ("prefill", "decode"):
            took[one.cause] += one.took_us  # type: ignore[assignment]  # a Counter of floats
            continue
        own_us = min(pace_us, one.took_us)
        took[one.cause] += one.took_us - own_us  # type: ignore[assignment]
        if metric == "e2e_ms":
            took["decode"] += own_us  # type: ignore[assignment]
    cause = max(took, key=lambda cause: took[cause])
    if cause == "decode":  # beside others' prefill, too, it decoded
        return cause, sorted(steps.get("decode", []) + steps.get("prefill", []))
    return cause, sorted(steps[cause])


def _reason(cause: Cause, steps: list[int], metric: Metric, timeline: Timeline, request: RequestMetrics) -> str:
    tables = [timeline.batches[step].table for step in steps]
    if cause == "prompt":
        chunks = f", in {len(steps)} chunks" if len(steps) > 1 else ""
        return f"its own prompt of {request.prompt_tokens:,} tokens{chunks}"
    if cause == "preempted":
        return "preempted: the KV cache was full, and its own was computed again"
    if cause == "decode" and metric == "e2e_ms":
        return f"its own {request.output_tokens:,} output tokens, one a step"
    most = max(int(np.count_nonzero(table[:, 2])) for table in tables)
    prefill: Counter[int] = Counter()
    for table in tables:
        for other, tokens in table[table[:, 1] > 0, :2].tolist():
            if other != request.request:
                prefill[other] += tokens
    if cause == "decode" or not prefill:
        beside = f"{most} requests at once" if most > 1 else "one request at a time"
        return (
            f"waiting while {beside} decoded"
            if cause == "waiting"
            else f"decoding {beside}, with no prefill in the way"
        )
    return f"{'waiting behind the prefill' if cause == 'waiting' else 'prefill'} of {_named(prefill)}" + (
        " in the way" if cause == "prefill" else ""
    )


def _named(prefill: Counter[int]) -> str:
    """The requests with most prefill tokens: ``request 41``, ``requests 3, 41 and 5 more``."""
    named = sorted(request for request, _ in prefill.most_common(NAMED))
    rest = len(prefill) - len(named)
    listed = ", ".join(map(str, named)) + (f" and {rest} more" if rest else "")
    return f"request {listed}" if len(prefill) == 1 else f"requests {listed}"
