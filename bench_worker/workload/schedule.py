"""Continuous batching: which tokens of which requests each step computes. Pure and independent of step times.

A step decodes one token of every request whose prompt is done, then fills what is left of ``max_batch_tokens`` with
prompts in arrival order, cut into chunks where they don't fit. The step that ends a prompt yields the first token, so a
request of n output tokens has n − 1 decode tokens. In closed loop a request arrives when a slot is free: the slot that
a step frees is taken at the start of the next.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bench_worker.workload import Request

__all__ = ["Batch", "Entry", "closed_loop"]

#: A schedule is made whole; above these it takes several gigabytes (90 bytes an entry, 700 a step).
MAX_ENTRIES = 50_000_000
MAX_STEPS = 5_000_000


class Entry(NamedTuple):
    """One request's part of a step. ``context_tokens`` stand in its KV cache before the step."""

    request: int
    prefill_tokens: int
    decode_tokens: int
    context_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one step computes.

    ``table`` int64 [n, 4] holds the entries, with the columns of `Entry`: decodes first, then prompts, each in arrival
    order. ``yields`` bool [n]: the entry yields an output token (the head runs on these). ``ends`` bool [n]: that
    token is its request's last. ``arrivals`` int64 [a]: requests that arrive at the start of the step.
    """

    table: np.ndarray
    yields: np.ndarray
    ends: np.ndarray
    arrivals: np.ndarray

    @property
    def entries(self) -> list[Entry]:
        """The rows of ``table``, made anew at each call."""
        return [Entry(*row) for row in self.table.tolist()]

    @property
    def prefill_tokens(self) -> int:
        return int(self.table[:, 1].sum())

    @property
    def decode_tokens(self) -> int:
        return int(self.table[:, 2].sum())

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decode_tokens


def closed_loop(requests: Sequence[Request], concurrency: int, max_batch_tokens: int) -> list[Batch]:
    """The steps that serve ``requests`` in order with ``concurrency`` of them in flight, one `Batch` a step.

    Raises ``ValueError`` for a concurrency below 1 or above ``max_batch_tokens`` (a step decodes one token of each
    request in flight), for a request without a prompt or an output, and for a schedule above `MAX_STEPS` or
    `MAX_ENTRIES`.
    """
    if not 1 <= concurrency <= max_batch_tokens:
        raise ValueError(f"concurrency is {concurrency}; it must be from 1 to max_batch_tokens ({max_batch_tokens})")
    for index, request in enumerate(requests):
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            lengths = f"{request.prompt_tokens} prompt and {request.output_tokens} output tokens"
            raise ValueError(f"request {index} has {lengths}; it must have at least 1 of each")
    if not requests:
        return []
    return _batches(requests, _plan(requests, concurrency, max_batch_tokens))


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
            raise ValueError(f"the schedule has over {MAX_ENTRIES:,} entries; take fewer or shorter requests")
        step += 1
    if max(last_steps) >= MAX_STEPS:
        raise ValueError(
            f"the schedule has {max(last_steps) + 1:,} steps, over {MAX_STEPS:,}; take fewer or shorter requests"
        )
    return plan


def _batches(requests: Sequence[Request], plan: _Plan) -> list[Batch]:
    """Writes out every step of a plan. Prompts end in arrival order, so order within a step is order of requests."""
    count = len(requests)
    prompt, output = np.array([request[1:] for request in requests], np.int64).T
    first = np.array(plan.first_token_step)
    last = first + output - 1
    chunk_step, chunk_request, chunk_tokens, chunk_done = np.array(plan.chunks, np.int64).T

    # One integer a (step, request): sorting them is sorting the entries, several times faster than by an index.
    decodes = output - 1
    decoding = np.repeat(np.arange(count), decodes)
    nth = np.arange(len(decoding)) - np.repeat(np.cumsum(decodes) - decodes, decodes)
    chunk_key = chunk_step * count + chunk_request
    key = np.concatenate([(first[decoding] + 1 + nth) * count + decoding, chunk_key])
    key.sort()

    step, request = np.divmod(key, count)
    table = np.empty((len(key), 4), np.int64)
    table[:, 0] = request
    table[:, 1] = 0
    table[:, 2] = 1
    table[:, 3] = prompt[request] + step - first[request] - 1
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
