"""Continuous batching done slowly: one token at a time, with everything counted anew whenever it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from bench_worker.workload.requests import Request


class SlowStep(NamedTuple):
    start: float
    entries: list[tuple[int, int, int, int]]
    yielding: list[int]
    ending: list[int]
    arrivals: list[int]
    preempted: list[int]
    kv_tokens: int


class InFlight:
    def __init__(self, index: int, to_compute: int, cached: int, blocks: list[int]) -> None:
        self.index, self.to_compute, self.cached, self.blocks = index, to_compute, cached, blocks

    @property
    def reserved(self) -> int:
        return self.cached + self.to_compute


class SlowEngine:
    """The rules of `bench_worker.workload.engine`, with blocks of ``block`` tokens."""

    def __init__(
        self,
        requests: Sequence[Request],
        concurrency: int,
        max_batch_tokens: int,
        kv_tokens: int | None = None,
        prefixes: Sequence[Sequence[int]] | None = None,
        block: int = 512,
    ) -> None:
        self.requests, self.concurrency, self.max_batch_tokens = requests, concurrency, max_batch_tokens
        self.most, self.prefixes, self.block = kv_tokens, prefixes, block
        self.queue: list[int] = []
        self.running: list[InFlight] = []
        self.yielded = [0] * len(requests)
        self.idle: list[int] = []

    def used_blocks(self) -> set[int]:
        return {block for one in self.running for block in one.blocks}

    def kv_tokens(self) -> int:
        own = sum(one.reserved - self.block * len(one.blocks) for one in self.running)
        return own + self.block * len(self.used_blocks())

    def leave(self, one: InFlight) -> None:
        self.running.remove(one)
        self.idle += [block for block in reversed(one.blocks) if block not in self.used_blocks()]

    def evict(self) -> None:
        while self.most is not None and self.kv_tokens() + self.block * len(self.idle) > self.most:
            self.idle.pop(0)

    def admit(self) -> bool:
        index = self.queue[0]
        prompt, known = self.requests[index].prompt_tokens, self.requests[index].prompt_tokens + self.yielded[index]
        blocks: list[int] = []
        if self.prefixes is not None:
            for place, block in enumerate(self.prefixes[index]):
                end = (place + 1) * self.block
                if end > prompt or end >= known or block not in self.used_blocks() | set(self.idle):
                    break
                blocks.append(block)
        one = InFlight(index, known - self.block * len(blocks), self.block * len(blocks), blocks)
        self.running.append(one)
        if self.most is not None and self.kv_tokens() > self.most:
            self.running.pop()
            return False
        self.idle = [block for block in self.idle if block not in blocks]
        self.evict()
        self.queue.pop(0)
        return True

    def step(self, now: float, arrivals: list[int]) -> SlowStep:
        self.queue += arrivals
        preempted = []
        decoding = [one for one in self.running if one.to_compute == 0]
        while self.most is not None and self.kv_tokens() + len(decoding) > self.most:
            last = self.running[-1]
            self.leave(last)
            self.queue.insert(0, last.index)
            preempted.append(last.index)
            decoding = [one for one in self.running if one.to_compute == 0]
        room, entries, yielding, ending = self.max_batch_tokens, [], [], []
        for one in decoding:
            entries.append((one.index, 0, 1, one.cached))
            yielding.append(one)
            one.cached += 1
            room -= 1
        self.evict()
        begun, completed = [one for one in self.running if one.to_compute], []
        while room:
            if not begun:
                if len(self.running) == self.concurrency or not self.queue or not self.admit():
                    break
                begun = [self.running[-1]]
            one, chunk, before = begun[0], 0, begun[0].cached
            while room and one.to_compute:
                one.to_compute -= 1
                one.cached += 1
                room -= 1
                chunk += 1
                in_prompt = one.cached <= self.requests[one.index].prompt_tokens
                if self.prefixes is not None and one.cached % self.block == 0 and in_prompt:
                    completed.append((one, self.prefixes[one.index][one.cached // self.block - 1]))
            entries.append((one.index, chunk, 0, before))
            if not one.to_compute:
                yielding.append(one)
                begun = []
        held = self.kv_tokens()
        for one, block in completed:
            if block not in self.used_blocks() | set(self.idle):
                one.blocks.append(block)
        for one in yielding:
            self.yielded[one.index] += 1
            if self.yielded[one.index] == self.requests[one.index].output_tokens:
                ending.append(one.index)
        for one in [one for one in yielding if one.index in ending]:
            self.leave(one)
        return SlowStep(now, entries, [one.index for one in yielding], ending, arrivals, preempted, held)

    def serve(
        self, arrive: Callable[[float, int, int], bool], took: Callable[[list[tuple[int, int, int, int]]], float],
        wait: Callable[[int], float] = lambda _next: 0.0,
    ) -> list[SlowStep]:  # fmt: skip
        """Every step. ``arrive(now, unfinished, next)``: whether the request ``next`` has arrived; ``took(entries)``:
        how long a step takes; ``wait(next)``: when it comes, for an engine with nothing to do."""
        steps, now, come = [], 0.0, 0
        while come < len(self.requests) or self.queue or self.running:
            if not self.queue and not self.running:
                now = max(now, wait(come))
            arrivals = []
            while come < len(self.requests) and arrive(now, len(self.queue) + len(self.running) + len(arrivals), come):
                arrivals.append(come)
                come += 1
            steps.append(self.step(now, arrivals))
            now += took(steps[-1].entries)
        return steps
