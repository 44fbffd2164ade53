"""The steps that serve a list of requests: closed loop, whose steps are known beforehand, and open loop. Pure.

A step decodes one token of every request whose prompt is done, then fills what is left of ``max_batch_tokens`` with
prompts in arrival order, cut into chunks where they don't fit. The step that ends a prompt yields the first token, so a
request of n output tokens has n − 1 decode tokens. In closed loop a request arrives when a slot is free: the slot that
a step frees is taken at the start of the next. In open loop it arrives at its own time, whether or not the engine keeps
up. What happens when the KV cache is full is written in `bench_worker.workload.engine`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bench_worker.workload import Request
from bench_worker.workload.batch import Batch, Entry
from bench_worker.workload.engine import Engine, Limits, check

__all__ = ["Batch", "Entry", "Limits", "OpenLoop", "Started", "closed_loop"]

#: A schedule is made whole; above these it takes several gigabytes (90 bytes an entry, 700 a step).
MAX_ENTRIES = 50_000_000
MAX_STEPS = 5_000_000


def closed_loop(
    requests: Sequence[Request],
    concurrency: int,
    max_batch_tokens: int,
    *,
    kv_tokens: int | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[Batch]:
    """The steps that serve ``requests`` in order with ``concurrency`` of them in flight, one `Batch` a step.

    ``kv_tokens`` bounds the KV cache; ``prefixes`` gives the blocks of each request's prompt, to be reused. Raises
    ``ValueError`` for a concurrency below 1 or above ``max_batch_tokens`` (a step decodes one token of each request in
    flight), for a request without a prompt or an output or beyond the KV cache, and for a schedule above `MAX_STEPS` or
    `MAX_ENTRIES`.
    """
    limits = Limits(concurrency, max_batch_tokens, kv_tokens)
    check(requests, limits)
    if not requests:
        return []
    if kv_tokens is None and prefixes is None:
        return _batches(requests, _plan(requests, concurrency, max_batch_tokens))
    engine, batches, arrived, entries = Engine(requests, limits, prefixes), [], 0, 0
    while arrived < len(requests) or engine.unfinished:
        arrivals = range(arrived, min(arrived + concurrency - engine.unfinished, len(requests)))
        arrived = arrivals.stop
        batches.append(engine.next_batch(arrivals))
        entries += len(batches[-1].table)
        if entries > MAX_ENTRIES or len(batches) > MAX_STEPS:
            raise _too_long(f"over {MAX_ENTRIES:,} entries or {MAX_STEPS:,} steps")
    return batches


class Started(NamedTuple):
    """A step of an open loop, and when it begins, in µs."""

    start_us: float
    batch: Batch


class OpenLoop:
    """The steps of an engine to which requests come at ``arrival_us`` [n], which rise, whether or not it keeps up: how
    long each step takes decides what the next one holds. Raises ``ValueError`` as `Engine`."""

    def __init__(
        self,
        requests: Sequence[Request],
        arrival_us: Sequence[float] | np.ndarray,
        limits: Limits,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._arrival_us = np.asarray(arrival_us, float)
        if self._arrival_us.shape != (len(requests),):
            raise ValueError(f"there are {len(requests)} requests and {self._arrival_us.size} arrivals")
        self._engine = Engine(requests, limits, prefixes)
        self.arrived = 0

    @property
    def finished(self) -> int:
        """Requests that have ended."""
        return self.arrived - self._engine.unfinished

    def next(self, now_us: float) -> Started | None:
        """The step that begins at ``now_us``, the end of the one before, or later where the engine has to wait for a
        request. None when all have ended."""
        if not self._engine.unfinished:
            if self.arrived == len(self._arrival_us):
                return None
            now_us = max(now_us, float(self._arrival_us[self.arrived]))
        arrivals = range(self.arrived, int(np.searchsorted(self._arrival_us, now_us, side="right")))
        self.arrived = arrivals.stop
        return Started(now_us, self._engine.next_batch(arrivals))


def _too_long(what: str) -> ValueError:
    return ValueError(f"the schedule has {what}; take fewer or shorter requests")


class _Plan(NamedTuple):
    """All that isn't implied: when requests arrive and yield their first token, and the chunks of their prompts."""

    arrival_step: list[int]
    first_token_step: list[int]
    #: (step, request, tokens, tokens of the prompt before them)
    chunks: list[tuple[int, int, int, int]]


def _plan(requests: Sequence[Request], concurrency: int, max_batch_tokens: int) -> _Plan:
    """Goes from event to event, since nothing changes in steps that only decode."""
    most_chunks = MAX_ENTRIES - sum(request.output_tokens - 1 for request in requests)
    plan = _Plan([], [], [])
    prompts: deque[tuple[int, int]] = deque()  # (request, tokens done) of those in flight whose prompt isn't done
    last_steps: list[int] = []  # heap: the last step of each request whose prompt is done
    step = 0
    while len(plan.first_token_step) < len(requests):
        while last_steps and last_steps[0] < step:
            heapq.heappop(last_steps)
        arrived = len(plan.arrival_step)
        for request in range(arrived, min(arrived + concurrency - len(last_steps) - len(prompts), len(requests))):
            plan.arrival_step.append(step)
            prompts.append((request, 0))
        if not prompts:
            step = last_steps[0] + 1
            continue
        room = max_batch_tokens - len(last_steps)
        while room and prompts:
            request, done = prompts.popleft()
            tokens = min(room, requests[request].prompt_tokens - done)
            plan.chunks.append((step, request, tokens, done))
            room -= tokens
            if done + tokens < requests[request].prompt_tokens:
                prompts.appendleft((request, done + tokens))
            else:
                plan.first_token_step.append(step)
                heapq.heappush(last_steps, step + requests[request].output_tokens - 1)
        if len(plan.chunks) > most_chunks:
            raise _too_long(f"over {MAX_ENTRIES:,} entries")
        step += 1
    if max(last_steps) >= MAX_STEPS:
        raise _too_long(f"{max(last_steps) + 1:,} steps, over {MAX_STEPS:,}")
    return plan


def _batches(requests: Sequence[Request], plan: _Plan) -> list[Batch]:
    """Writes out every step of a plan. Prompts end in arrival order, so order within a step is order of requests."""
    count = len(requests)
    prompt, output = np.array([request[1:] for request in requests], np.int64).T
    first = np.array(plan.first_token_step)
    last = first + output - 1
    chunk_step, chunk_request, chunk_tokens, chunk_done = np.array(plan.chunks, np.int64).T

    # One integer a (step, request): sorting them is sorting the entries, several times faster than by an index. The
    # large arrays are made in place, since fresh memory costs more than the arithmetic.
    decodes = output - 1
    key = np.arange(decodes.sum())
    key *= count
    key += np.repeat((first + 1 - np.cumsum(decodes) + decodes) * count + np.arange(count), decodes)
    chunk_key = chunk_step * count + chunk_request
    key = np.concatenate([key, chunk_key])
    key.sort()

    table = np.empty((len(key), 4), np.int64)
    step, request = np.empty(len(key), np.int64), table[:, 0]
    np.divmod(key, count, out=(step, request))
    table[:, 1] = 0
    table[:, 2] = 1
    np.add((prompt - first - 1)[request], step, out=table[:, 3])
    chunk_at = np.searchsorted(key, chunk_key)
    table[chunk_at, 1:] = np.stack([chunk_tokens, np.zeros_like(chunk_tokens), chunk_done], axis=1)
    yields = np.ones(len(key), bool)
    yields[chunk_at] = chunk_done + chunk_tokens == prompt[chunk_request]
    ends = step == last[request]

    steps = np.arange(int(last.max()) + 2)
    entry_bounds = np.searchsorted(step, steps).tolist()
    arrival_bounds = np.searchsorted(plan.arrival_step, steps).tolist()
    arrivals = np.arange(count)
    return [
        Batch(table[a:b], yields[a:b], ends[a:b], arrivals[c:d])
        for a, b, c, d in zip(entry_bounds[:-1], entry_bounds[1:], arrival_bounds[:-1], arrival_bounds[1:], strict=True)
    ]
