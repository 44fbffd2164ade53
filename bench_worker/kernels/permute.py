"""Grouping assignments by expert and bringing their results back.

Shapes: ``T`` tokens, ``H`` hidden, ``E`` experts, ``N`` assignments.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bench_worker.routing.base import Assignments


class RowBuffer:
    """A buffer of rows that is kept between steps and only ever grows, so that packing allocates nothing."""

    def __init__(self, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        self._rows = torch.empty(0, hidden, dtype=dtype, device=device)

    def take(self, count: int) -> Tensor:
        """The first ``count`` rows [count, H]; their old contents are not cleared."""
        if count > self._rows.shape[0]:
            self._rows = self._rows.new_empty(count, self._rows.shape[1])
        return self._rows[:count]

    def poison(self) -> None:
        """Fill with NaN, so that a row nobody wrote shows in the result."""
        self._rows.fill_(torch.nan)


@dataclass(frozen=True)
class Packed:
    """``rows`` [N, H] grouped by expert, ``counts`` int64 [E] rows an expert, ``place`` int64 [N]: the row of each
    assignment, in token-major order, ``first`` int64 [T]: a token's first assignment."""

    rows: Tensor
    counts: Tensor
    place: Tensor
    first: Tensor


def pack(hidden: Tensor, assignments: Assignments, buffer: RowBuffer, weighted: bool = False) -> Packed:
    """Gather the token row of every assignment, expert by expert; ``weighted`` scales it by its routing weight."""
    by_expert, order = assignments.expert.sort(stable=True)
    rows = buffer.take(order.numel())
    torch.index_select(hidden, 0, assignments.token[order], out=rows)
    if weighted:
        rows.mul_(assignments.weight[order].to(rows.dtype)[:, None])
    first = starts(assignments.token, assignments.num_tokens)
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel(), device=order.device)
    return Packed(rows, starts(by_expert, assignments.num_experts + 1).diff(), place, first)


def starts(ascending: Tensor, count: int) -> Tensor:
    """Where each of 0 … ``count`` − 1 begins in ``ascending`` values. Unlike a bincount it never waits for a GPU."""
    return torch.searchsorted(ascending, torch.arange(count, device=ascending.device))


def combine(outputs: Tensor, packed: Packed, weight: Tensor) -> Tensor:
    """Sum each token's expert outputs by routing weight: [T, H] from ``outputs`` [N, H] and ``weight`` [N].

    One pass that reads each output row once; a token without assignments gets zeros.
    """
    return F.embedding_bag(packed.place, outputs, packed.first, mode="sum", per_sample_weights=weight.to(outputs.dtype))
