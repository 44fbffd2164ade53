"""Which steps make a slow request slow, and why. Pure.

The request at a percentile of a metric is the fastest of those at or above it. Its time is split by what happened to it
in each step: it waited to be admitted, its prompt was computed, its KV cache had been preempted, it decoded beside
another's prefill, or beside decodes alone. What took most of the time is the cause, and the steps are those in which it
happened. Of decodes, TPOT and ITL count only what is above the pace of this run, the median step that decodes alone:
the rest is what every request pays.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from bench_worker.serving import RequestMetrics, Timeline, request_metrics, step_times
from bench_worker.workload.schedule import Batch

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
    """A value of the metric: which pass and request it is of and, for ITL, which of its gaps."""

    value_ms: float
    timeline: int
    request: RequestMetrics
    gap: int = 0


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
    taken = [s for s in beyond if s.timeline == chosen.timeline] if metric == "itl_ms" else [chosen]
    happened = {one.step: one for s in taken for one in lives.between(s.request.request, metric, s.gap)}
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
        self._arrival_us = timeline.arrival_us
        self._prefills = np.array([batch.prefill_tokens > 0 for batch in batches])
        self._arrived = {request: step for step, batch in enumerate(batches) for request in batch.arrivals.tolist()}
        self._preempted = {request for batch in batches for request in batch.preempted.tolist()}
        step = np.repeat(np.arange(len(batches)), [len(batch.table) for batch in batches])
        table = np.concatenate([batch.table for batch in batches])
        order = np.lexsort((step, table[:, 0]))
        self._request, self._step, self._decodes = table[order, 0], step[order], table[order, 2] > 0
        self._yields = np.concatenate([batch.yields for batch in batches])[order]

    def between(self, request: int, metric: Metric, gap: int) -> list[_Happened]:
        """The steps that ``metric`` of a finished request spans: up to its first token, after it, all, or one gap."""
        own = slice(*np.searchsorted(self._request, [request, request + 1]))
        tokens = self._step[own][self._yields[own]]
        arrived = self._arrived[request]
        begin = tokens[gap] + 1 if metric in ("itl_ms", "tpot_ms") else arrived
        end = {"ttft_ms": tokens[0], "itl_ms": tokens[min(gap + 1, len(tokens) - 1)]}.get(metric, tokens[-1])
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
    took: defaultdict[Cause, float] = defaultdict(float)
    steps: dict[Cause, list[int]] = {}
    for one in happened:
        steps.setdefault(one.cause, []).append(one.step)
        if one.cause not in ("prefill", "decode"):
            took[one.cause] += one.took_us
            continue
        own_us = min(pace_us, one.took_us)
        took[one.cause] += one.took_us - own_us
        if metric == "e2e_ms":
            took["decode"] += own_us
    cause = max(took, key=lambda cause: took[cause])
    if cause == "decode":  # beside others' prefill, too, it decoded
        return cause, sorted(steps.get("decode", []) + steps.get("prefill", []))
    return cause, sorted(steps[cause])


def _reason(cause: Cause, steps: list[int], metric: Metric, timeline: Timeline, request: RequestMetrics) -> str:
    batches = [timeline.batches[step] for step in steps]
    if cause == "prompt":
        chunks = f", in {len(steps)} chunks" if len(steps) > 1 else ""
        return f"its own prompt of {request.prompt_tokens:,} tokens{chunks}"
    if cause == "preempted":
        return "preempted: the KV cache was full, and its own was computed again"
    if cause == "prefill":
        return f"prefill of {_prefilled(batches)} in the way"
    if cause == "decode" and metric == "e2e_ms":
        return f"its own {request.output_tokens:,} output tokens, one a step"
    if cause == "decode":
        return f"decoding {_decoded(batches)}, with no prefill in the way"
    took_us = [timeline.step_us[step] for step in steps]
    behind_us = sum(us for batch, us in zip(batches, took_us, strict=True) if batch.prefill_tokens)
    if behind_us < sum(took_us) / 2:
        return f"waiting while {_decoded(batches)} decoded"
    return f"waiting behind the prefill of {_prefilled(batches)}"


def _decoded(batches: Sequence[Batch]) -> str:
    most = max(batch.decode_tokens for batch in batches)
    return f"{most} requests at once" if most > 1 else "one request at a time"


def _prefilled(batches: Sequence[Batch]) -> str:
    """The requests with most prefill tokens: ``request 41``, ``requests 3, 41, 52 and 5 more``."""
    prefill: Counter[int] = Counter()
    for batch in batches:
        for request, tokens in batch.table[:, :2].tolist():
            prefill[request] += tokens
    prefill = +prefill  # without those that only decoded
    named = sorted(request for request, _ in prefill.most_common(NAMED))
    rest = len(prefill) - len(named)
    listed = ", ".join(map(str, named)) + (f" and {rest} more" if rest else "")
    return f"request {listed}" if len(prefill) == 1 else f"requests {listed}"
