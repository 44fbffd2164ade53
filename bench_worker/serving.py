"""What a client sees: from the time of each step to the latencies of each request. Pure.

The names mean what vLLM means by them; other tools mean other things. Latencies count from a request's arrival: in
closed loop the start of the step that takes the slot it waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench_worker.workload.schedule import Batch

__all__ = ["RequestMetrics", "output_tokens_per_s", "request_metrics"]


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """One finished request. Times in milliseconds; ``arrival_ms`` on the clock of the steps.

    ``ttft_ms``: arrival to the end of the step that ends the prompt. ``itl_ms``: the gaps between successive output
    tokens, one fewer than tokens. ``e2e_ms``: arrival to the last token. ``tpot_ms`` = (e2e − ttft) / (tokens − 1),
    None for a single token. ``request`` is the index in the list that was scheduled.
    """

    request: int
    arrival_ms: float
    ttft_ms: float
    tpot_ms: float | None
    itl_ms: list[float]
    e2e_ms: float
    prompt_tokens: int
    output_tokens: int


def request_metrics(
    batches: Sequence[Batch],
    step_us: Sequence[float] | np.ndarray,
    start_us: Sequence[float] | np.ndarray | None = None,
) -> list[RequestMetrics]:
    """Metrics of the requests that both arrive and end within ``batches``, in the order of their indices.

    ``step_us`` [S]: how long each step took; ``start_us`` [S]: when it began, or None for back to back from 0. A batch
    names the requests that arrive and marks the entries that end one, so a truncated run leaves out those it cut off.
    Raises ``ValueError`` where the lengths differ.
    """
    start, end = _clock(batches, step_us, start_us)
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
    arrival_us = np.zeros(count)
    arrival_us[arrived] = start[arrival_step]
    prompt_tokens = np.bincount(request, weights=table[:, 1], minlength=count).astype(int)

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

    arrival_us = arrival_us[finished]
    ttft_us = token_us[first] - arrival_us
    e2e_us = token_us[last] - arrival_us
    gaps = last - first
    tpot_us = (e2e_us - ttft_us) / np.maximum(gaps, 1)
    return [
        RequestMetrics(index, arrival, ttft, tpot if b > a else None, gaps_ms[a:b], e2e, prompt, b - a + 1)
        for index, arrival, ttft, tpot, e2e, prompt, a, b in zip(
            finished.tolist(),
            *((us / 1000).tolist() for us in (arrival_us, ttft_us, tpot_us, e2e_us)),
            prompt_tokens[finished].tolist(),
            first.tolist(),
            last.tolist(),
            strict=True,
        )
    ]


def output_tokens_per_s(
    batches: Sequence[Batch],
    step_us: Sequence[float] | np.ndarray,
    start_us: Sequence[float] | np.ndarray | None = None,
) -> float:
    """Output tokens a second, from the start of the first step to the end of the last.

    Counts every token, also of requests that a truncated run cut off. 0 without steps. Arguments and errors as
    `request_metrics`.
    """
    start, end = _clock(batches, step_us, start_us)
    if not batches:
        return 0.0
    tokens = sum(int(np.count_nonzero(batch.yields)) for batch in batches)
    return tokens / (end[-1] - start[0]) * 1e6


def _clock(
    batches: Sequence[Batch], step_us: Sequence[float] | np.ndarray, start_us: Sequence[float] | np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """When each step starts and ends, in µs."""
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
