"""Continuous batching one step at a time, with a bounded KV cache and reuse of prefixes. Pure.

A step decodes one token of every request whose prompt is done, then fills what is left of ``max_batch_tokens`` with
prompts in arrival order, cut into chunks where they don't fit (as vLLM's V1 scheduler does). A request is admitted when
the KV cache has room for its whole prompt, and holds that room from then on; so only decodes can run out of room. Then
the request that arrived last is preempted: it loses its KV cache, goes back to the head of the queue, and when it is
admitted again its prompt and the tokens that it has yielded are computed once more (vLLM's recompute; nothing is
swapped).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bench_worker.workload import Request
from bench_worker.workload.batch import Batch
from bench_worker.workload.prefix import BLOCK_TOKENS, PrefixCache

__all__ = ["Engine", "Limits", "check"]


class Limits(NamedTuple):
    """What an engine holds: requests in flight, tokens a step, and tokens in the KV cache (None: as many as come)."""

    concurrency: int
    max_batch_tokens: int
    kv_tokens: int | None = None


def check(requests: Sequence[Request], limits: Limits) -> None:
    """Raise ``ValueError`` for limits that serve nothing (a step decodes one token of each request in flight), for a
    request without a prompt or an output, and for one that the KV cache can't hold alone."""
    if not 1 <= limits.concurrency <= limits.max_batch_tokens:
        raise ValueError(
            f"concurrency is {limits.concurrency}; it must be from 1 to max_batch_tokens ({limits.max_batch_tokens})"
        )
    for index, request in enumerate(requests):
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            lengths = f"{request.prompt_tokens} prompt and {request.output_tokens} output tokens"
            raise ValueError(f"request {index} has {lengths}; it must have at least 1 of each")
        if limits.kv_tokens is not None and _most_kv_tokens(request) > limits.kv_tokens:
            raise ValueError(
                f"request {index} leaves {_most_kv_tokens(request):,} tokens in the KV cache; "
                f"kv_tokens is {limits.kv_tokens:,}"
            )


def _most_kv_tokens(request: Request) -> int:
    """The last output token never enters the cache."""
    return request.prompt_tokens + request.output_tokens - 1


class Prompt(NamedTuple):
    """A request whose prompt is being computed: ``done`` of ``needed`` tokens, among them those that it had yielded
    before a preemption."""

    request: int
    done: int
    needed: int


class Engine:
    """The scheduler's state between two steps. ``prefixes`` gives the blocks of each request's prompt (see
    `bench_worker.workload.prefix`); without it nothing is reused. A block can be reused from the step after the one
    that completes it. Raises ``ValueError`` as `check` says.

    Requests are admitted in order of arrival and preempted from the end, so those in flight are in that order: first
    those that decode, then at most one whose prompt has begun.
    """

    def __init__(
        self, requests: Sequence[Request], limits: Limits, prefixes: Sequence[Sequence[int]] | None = None
    ) -> None:
        check(requests, limits)
        self._requests, self._limits, self._prefixes = requests, limits, prefixes
        self._waiting: deque[int] = deque()
        self._prompt: Prompt | None = None
        # Of those that decode: the request, tokens in its cache, output tokens left.
        self._decoding, self._context, self._left = (np.empty(0, np.int64) for _ in range(3))
        self._cache = PrefixCache()
        self._shared: dict[int, list[int]] = {}  # blocks that a request in flight uses
        self._own_tokens = 0  # KV tokens outside of blocks
        self._yielded: dict[int, int] = {}  # output tokens of preempted requests
        self._reached: dict[int, int] = {}  # tokens of theirs that have been computed before

    @property
    def unfinished(self) -> int:
        """Requests that have arrived and not ended."""
        return len(self._waiting) + len(self._decoding) + (self._prompt is not None)

    @property
    def kv_tokens(self) -> int:
        """Tokens in the KV cache that requests in flight hold or have reserved."""
        return self._own_tokens + self._cache.used_tokens

    def next_batch(self, arrivals: Sequence[int]) -> Batch:
        """The next step, after ``arrivals`` have joined the queue. There must be something unfinished."""
        self._waiting.extend(arrivals)
        preempted = self._make_room_for_decodes()
        decodes = len(self._decoding)
        self._hold(decodes)
        chunks, reused = self._chunks(self._limits.max_batch_tokens - decodes)
        assert decodes + len(chunks), "there is nothing to do"

        table = np.zeros((decodes + len(chunks), 4), np.int64)
        table[:decodes, 0] = self._decoding
        table[:decodes, 2] = 1
        table[:decodes, 3] = self._context
        yields = np.ones(len(table), bool)
        ends = np.zeros(len(table), bool)
        ends[:decodes] = self._left == 1
        recomputed = 0
        for row, (chunk, tokens) in enumerate(chunks, start=decodes):
            table[row] = chunk.request, tokens, 0, chunk.done
            yields[row] = chunk.done + tokens == chunk.needed
            ends[row] = yields[row] and self._output_left(chunk.request) == 1
            recomputed += max(0, min(chunk.done + tokens, self._reached.get(chunk.request, 0)) - chunk.done)
        self._advance(chunks, yields[decodes:], ends)
        return Batch(
            table, yields, ends, np.array(arrivals, np.int64), np.array(preempted, np.int64), recomputed, reused
        )

    def _make_room_for_decodes(self) -> list[int]:
        """Preempt from the end until every decode has room for its token; the requests that were."""
        preempted: list[int] = []
        most = self._limits.kv_tokens
        while most is not None and self.kv_tokens + len(self._decoding) > most:
            if self._prompt is not None:
                victim, held, reached = self._prompt.request, self._prompt.needed, self._prompt.done
                self._prompt = None
            else:
                victim, held = int(self._decoding[-1]), int(self._context[-1])
                reached = held
                self._yielded[victim] = self._requests[victim].output_tokens - int(self._left[-1])
                self._drop_decodes(np.arange(len(self._decoding)) < len(self._decoding) - 1)
            self._reached[victim] = max(reached, self._reached.get(victim, 0))
            self._release(victim, held)
            self._waiting.appendleft(victim)
            preempted.append(victim)
        return preempted

    def _chunks(self, room: int) -> tuple[list[tuple[Prompt, int]], int]:
        """Prompts with the tokens of each in this step, ``room`` in all, and how many tokens prefixes saved."""
        chunks: list[tuple[Prompt, int]] = []
        reused = 0
        while room:
            if self._prompt is None:
                if len(self._decoding) + len(chunks) == self._limits.concurrency or not self._waiting:
                    break
                self._prompt = self._admitted(self._waiting[0])
                if self._prompt is None:
                    break
                reused += self._prompt.done
            tokens = min(room, self._prompt.needed - self._prompt.done)
            chunks.append((self._prompt, tokens))
            room -= tokens
            done = self._prompt.done + tokens
            self._prompt = self._prompt._replace(done=done) if done < self._prompt.needed else None
        return chunks, reused

    def _admitted(self, request: int) -> Prompt | None:
        """The head of the queue as a prompt to compute, where the KV cache has room for all of it."""
        prompt_tokens = self._requests[request].prompt_tokens
        needed = prompt_tokens + self._yielded.get(request, 0)
        found: Sequence[int] = ()
        if self._prefixes is not None:  # whole blocks; at least one token must be computed, to yield the next
            usable = min(prompt_tokens // BLOCK_TOKENS, (needed - 1) // BLOCK_TOKENS)
            found = self._cache.found(self._prefixes[request][:usable])
        own = needed - len(found) * BLOCK_TOKENS
        if self._limits.kv_tokens is not None:
            free = self._limits.kv_tokens - self.kv_tokens - self._cache.woken_tokens(found)
            if own > free:
                return None
        self._waiting.popleft()
        self._cache.take(found)
        self._shared[request] = list(found)
        self._hold(own)
        return Prompt(request, needed - own, needed)

    def _advance(self, chunks: list[tuple[Prompt, int]], yields: np.ndarray, ends: np.ndarray) -> None:
        """The state after the step: decodes and chunks are done, and what has ended is gone."""
        decodes = len(self._decoding)
        self._context += 1
        self._left -= 1
        for row in np.flatnonzero(ends[:decodes]).tolist():
            self._release(int(self._decoding[row]), int(self._context[row]))
        if ends[:decodes].any():
            self._drop_decodes(~ends[:decodes])
        begun: list[tuple[int, int, int]] = []
        for (chunk, tokens), yielded, ended in zip(chunks, yields.tolist(), ends[decodes:].tolist(), strict=True):
            self._share(chunk, tokens)
            if ended:
                self._release(chunk.request, chunk.needed)
            elif yielded:
                begun.append((chunk.request, chunk.needed, self._output_left(chunk.request) - 1))
            if yielded:
                self._yielded.pop(chunk.request, None)
        if begun:
            state = np.concatenate([[self._decoding, self._context, self._left], np.array(begun).T], axis=1)
            self._decoding, self._context, self._left = state.astype(np.int64)

    def _share(self, chunk: Prompt, tokens: int) -> None:
        """Make the blocks that a chunk completes known to later requests."""
        if self._prefixes is None:
            return
        whole = min(chunk.done + tokens, self._requests[chunk.request].prompt_tokens) // BLOCK_TOKENS
        for block in self._prefixes[chunk.request][chunk.done // BLOCK_TOKENS : whole]:
            if self._cache.add(block):
                self._shared[chunk.request].append(block)
                self._own_tokens -= BLOCK_TOKENS

    def _hold(self, tokens: int) -> None:
        """Reserve ``tokens`` of the KV cache, at the cost of idle blocks."""
        self._own_tokens += tokens
        if self._limits.kv_tokens is not None:
            self._cache.shrink(self._limits.kv_tokens - self.kv_tokens)

    def _release(self, request: int, held: int) -> None:
        """Give back the ``held`` KV tokens of a request."""
        shared = self._shared.pop(request)
        self._cache.release(shared)
        self._own_tokens -= held - len(shared) * BLOCK_TOKENS

    def _output_left(self, request: int) -> int:
        """Output tokens that a request has still to yield when its prompt is done."""
        return self._requests[request].output_tokens - self._yielded.get(request, 0)

    def _drop_decodes(self, kept: np.ndarray) -> None:
        self._decoding, self._context, self._left = (
            column[kept] for column in (self._decoding, self._context, self._left)
        )
