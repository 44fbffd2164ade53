"""What a client sees: from the time of each step to the latencies of each request. Pure.

The names mean what vLLM means by them; other tools mean other things. Latencies count from a request's arrival: in
closed loop the start of the step that takes the slot it waited for, in open loop the time at which it was meant to
come, however late the engine is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bench_worker.workload.schedule import Batch

__all__ = [
    "LatencyLimits", "RequestMetrics", "Timeline", "output_tokens", "output_tokens_per_s", "request_metrics", "span_s",
    "step_times",
]  # fmt: skip


class Timeline(NamedTuple):
    """One pass over a schedule, S steps: how long each took and, where there are gaps, when it began, in µs.
    ``arrival_us`` [n]: when each of the scheduled requests was meant to arrive, in open loop."""

    batches: Sequence[Batch]
    step_us: Sequence[float] | np.ndarray
    start_us: Sequence[float] | np.ndarray | None = None
    arrival_us: Sequence[float] | np.ndarray | None = None


class LatencyLimits(NamedTuple):
    """The longest times, in ms, with which a client is content; None: any."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def met_by(self, request: RequestMetrics) -> bool:
        """Whether ``request`` meets all limits. A single output token has no TPOT to exceed."""
        return all(
            limit is None or found is None or found <= limit
            for limit, found in zip(self, (request.ttft_ms, request.tpot_ms, request.e2e_ms), strict=True)
        )


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """One finished request. Times in milliseconds; ``arrival_ms`` on the clock of the steps.

    ``ttft_ms``: arrival to the end of the step that ends the prompt. ``itl_ms``: the gaps between successive output
    tokens, one fewer than tokens. ``e2e_ms``: arrival to the last token. ``tpot_ms`` = (e2e − ttft) / (tokens − 1),
    None for a single token. ``request`` is the index in the list that was scheduled. ``wait_ms``: arrival to the start
    of the first step that computes any of its prompt. ``preempted_ms``: arrival to each loss of its KV cache.
    """

    request: int
    arrival_ms: float
    ttft_ms: float
    tpot_ms: float | None
    itl_ms: list[float]
    e2e_ms: float
    prompt_tokens: int
    output_tokens: int
    wait_ms: float = 0.0
    preempted_ms: list[float] = field(default_factory=list)


def request_metrics(
    batches: Sequence[Batch],
    step_us: Sequence[float] | np.ndarray,
    start_us: Sequence[float] | np.ndarray | None = None,
    arrival_us: Sequence[float] | np.ndarray | None = None,
) -> list[RequestMetrics]:
    """Metrics of the requests that both arrive and end within ``batches``, in the order of their indices.

    ``step_us`` [S]: how long each step took; ``start_us`` [S]: when it began, or None for back to back from 0. A batch
    names the requests that arrive and marks the entries that end one, so a truncated run leaves out those it cut off.
    ``arrival_us`` [n]: when each request was meant to arrive; None: when the step that names it began. Raises
    ``ValueError`` where the lengths differ.
    """
    start, end = step_times(batches, step_us, start_us)
    if not batches:
        return []
    step = np.repeat(np.arange(len(batches)), [len(batch.table) for batch in batches])
    table = np.concatenate([batch.table for batch in batches])
    yields = np.concatenate([batch.yields for batch in batches])
    ends = np.concatenate([batch.ends for batch in batches])
    request = table[:, 0]

    arrived = np.concatenate([batch.arrivals for batch in batches])
    arrival_step = np.repeat(np.arange(len(batches)), [len(batch.arrivals) for batch in batches])
    finished = np.intersect1d(arrived, request[ends])
    if not len(finished):
        return []
    count = int(max(request.max(), arrived.max())) + 1
    came_us = np.zeros(count)
    came_us[arrived] = start[arrival_step] if arrival_us is None else np.asarray(arrival_us, float)[arrived]

    # A prompt is all that stands in the cache when its request yields for the first time, reused or computed.
    prompt_tokens = np.zeros(count, int)
    prompt_tokens[request[yields][::-1]] = (table[yields, 1] + table[yields, 3])[::-1]

    began_us = np.zeros(count)
    began_us[request[::-1]] = start[step[::-1]]  # the first of its steps is written last
    preempted_ms: dict[int, list[float]] = {}
    for at_us, batch in zip(start.tolist(), batches, strict=True):
        for index in batch.preempted.tolist():
            preempted_ms.setdefault(index, []).append((at_us - float(came_us[index])) / 1000)

    # Tokens by request, then by step: sorting one integer for both is several times faster than by an index.
    kept = np.zeros(count, bool)
    kept[finished] = True
    key = (request * len(batches) + step)[yields & kept[request]]
    key.sort()
    token_request, token_step = np.divmod(key, len(batches))
    token_us = end[token_step]
    gaps_ms = (np.diff(token_us) / 1000).tolist()
    first = np.searchsorted(token_request, finished)
    last = np.searchsorted(token_request, finished, side="right") - 1

    came_us, began_us = came_us[finished], began_us[finished]
    ttft_us = token_us[first] - came_us
    e2e_us = token_us[last] - came_us
    gaps = last - first
    tpot_us = (e2e_us - ttft_us) / np.maximum(gaps, 1)
    return [
        RequestMetrics(
            index, arrival, ttft, tpot if b > a else None, gaps_ms[a:b], e2e, prompt, b - a + 1,
            wait, preempted_ms.get(index, []),
        )
        for index, arrival, ttft, tpot, e2e, wait, prompt, a, b in zip(
            finished.tolist(),
            *((us / 1000).tolist() for us in (came_us, ttft_us, tpot_us, e2e_us, began_us - came_us)),
            prompt_tokens[finished].tolist(),
            first.tolist(),
            last.tolist(),
            strict=True,
        )
    ]  # fmt: skip


def output_tokens_per_s(
    batches: Sequence[Batch],
    step_us: Sequence[float] | np.ndarray,
    start_us: Sequence[float] | np.ndarray | None = None,
) -> float:
    """Output tokens a second, from the start of the first step to the end of the last.

    Counts every token, also of requests that a truncated run cut off. 0 without steps. Arguments and errors as
    `request_metrics`.
    """
    took_s = span_s(Timeline(batches, step_us, start_us))
    return output_tokens(batches) / took_s if took_s else 0.0


def output_tokens(batches: Sequence[Batch]) -> int:
    """Output tokens that the steps yield."""
    return sum(int(np.count_nonzero(batch.yields)) for batch in batches)


def span_s(timeline: Timeline) -> float:
    """Seconds from the start of the first step to the end of the last, waiting for requests included. 0 without
    steps."""
    start, end = step_times(*timeline[:3])
    return float(end[-1] - start[0]) / 1e6 if len(end) else 0.0


def step_times(
    batches: Sequence[Batch],
    step_us: Sequence[float] | np.ndarray,
    start_us: Sequence[float] | np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """When each step starts and ends, in µs; arguments and errors as `request_metrics`."""
    took = np.asarray(step_us, float)
    if took.shape != (len(batches),):
        raise ValueError(f"there are {len(batches)} batches and {took.size} step times; it must be one each")
    if start_us is None:
        end = np.cumsum(took)
        return np.concatenate([[0.0], end[:-1]]), end
    start = np.asarray(start_us, float)
    if start.shape != took.shape:
        raise ValueError(f"there are {len(batches)} batches and {start.size} start times; it must be one each")
    return start, start + took
