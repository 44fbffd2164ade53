"""How the tokens of one step lie in the batch: which rows belong to which request, and where its KV cache is.

Shapes: ``T`` tokens of the step, ``Y`` rows that yield an output token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bench_worker.workload.schedule import Batch


@dataclass(frozen=True)
class Segment:
    """Rows ``start`` to ``start + length`` of the step belong to ``request``, which is in ``slot``; ``context`` tokens
    of it are in the KV cache already."""

    slot: int
    start: int
    length: int
    context: int
    request: int = 0


@dataclass(frozen=True)
class StepLayout:
    """One step on the device: ``slot`` and ``position`` int64 [T] of every row, ``yielding`` int64 [Y]."""

    segments: list[Segment]
    slot: Tensor
    position: Tensor
    yielding: Tensor

    @property
    def num_tokens(self) -> int:
        return self.slot.numel()

    @property
    def requests(self) -> tuple[np.ndarray, np.ndarray]:
        """The request of each segment, and its rows: both int64 [n]."""
        requests = np.array([segment.request for segment in self.segments], np.int64)
        return requests, np.array([segment.length for segment in self.segments], np.int64)


class Slots:
    """Gives every request in flight a place in the KV cache, and takes it back when the request has ended."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._of: dict[int, int] = {}

    def layout(self, batch: Batch, device: torch.device) -> StepLayout:
        """The layout of ``batch``. Call once a step, in schedule order."""
        for request in batch.preempted.tolist():
            self._free.append(self._of.pop(request))
        segments, start = [], 0
        for request, prefill, decode, context in batch.table.tolist():
            if request not in self._of:
                self._of[request] = self._free.pop()
            length = prefill + decode
            segments.append(Segment(self._of[request], start, length, context, request))
            start += length
        lengths = [s.length for s in segments]
        slot = np.repeat([s.slot for s in segments], lengths)
        position = np.concatenate([np.arange(s.context, s.context + s.length) for s in segments])
        ends = np.cumsum(lengths) - 1
        for request in batch.table[batch.ends, 0].tolist():
            self._free.append(self._of.pop(request))
        return StepLayout(
            segments,
            torch.from_numpy(slot).to(device),
            torch.from_numpy(position).to(device),
            torch.from_numpy(ends[batch.yields]).to(device),
        )


def one_token_each(requests: int, device: torch.device) -> StepLayout:
    """A step that computes one token of each of ``requests``."""
    place = torch.arange(requests, device=device)
    segments = [Segment(request, request, 1, 0, request) for request in range(requests)]
    return StepLayout(segments, place, torch.zeros_like(place), place)


def one_request(tokens: int, device: torch.device) -> StepLayout:
    """A step that computes a single prompt of ``tokens``."""
    positions = torch.arange(tokens, device=device)
    return StepLayout([Segment(0, 0, tokens, 0)], torch.zeros_like(positions), positions, positions[-1:])
