"""Making the rows that experts compute, grouped by expert, and bringing their results back.

Shapes: ``T`` tokens, ``H`` hidden, ``E`` experts, ``N`` assignments or slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bench_worker.routing.base import Assignments, SoftSlots


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
    """``rows`` [N, H] grouped by expert, or [E · room, H] where each expert has ``room`` of them, ``counts`` int64 [E]
    rows an expert, ``place`` int64 [N]: the row of each assignment, in token-major order, ``first`` int64 [T]: a
    token's first assignment, ``weight`` float32 [N]: how much of the row's result counts."""

    rows: Tensor
    counts: Tensor
    place: Tensor
    first: Tensor
    weight: Tensor

    def combine(self, outputs: Tensor) -> Tensor:
        """Sum each token's expert ``outputs`` [N, H] by weight: [T, H].

        One pass that reads each output row once; a token without assignments gets zeros.
        """
        weight = self.weight.to(outputs.dtype)
        return F.embedding_bag(self.place, outputs, self.first, mode="sum", per_sample_weights=weight)


@dataclass(frozen=True)
class Mixed:
    """``rows`` [N, H] of the slots, ``counts`` int64 [E] slots an expert, ``shares`` [T, N] of each slot in a token."""

    rows: Tensor
    counts: Tensor
    shares: Tensor

    def combine(self, outputs: Tensor) -> Tensor:
        """Sum all slots' ``outputs`` [N, H] by their shares in each token: [T, H]."""
        return self.shares @ outputs


#: How many rows to set aside for each expert, from the rows of each [E] and the step's tokens; None: back to back.
Room = Callable[[Tensor, int], int | None]


class Grouped(NamedTuple):
    """``rows`` and ``counts`` as in `Packed`; ``order`` int64 [N]: the assignments, expert by expert, and ``place``
    int64 [N]: the row of each of these."""

    rows: Tensor
    counts: Tensor
    order: Tensor
    place: Tensor


def group(
    source: Tensor,
    row: Tensor,
    expert: Tensor,
    num_experts: int,
    num_tokens: int,
    buffer: RowBuffer,
    room: Room = lambda *_: None,
    scale: Tensor | None = None,
) -> Grouped:
    """Gather row ``row`` [N] of ``source`` [·, H] for each assignment to ``expert`` [N], expert by expert, each in the
    order in which they stand; times ``scale`` [N] where given."""
    by_expert, order = expert.sort(stable=True)
    begins = starts(by_expert, num_experts + 1)
    counts = begins.diff()
    place = torch.arange(order.numel(), device=order.device)
    factor = None if scale is None else scale[order].to(source.dtype)[:, None]
    set_aside = room(counts, num_tokens)
    if set_aside is None:
        rows = buffer.take(order.numel())
        torch.index_select(source, 0, row[order], out=rows)
        if factor is not None:
            rows.mul_(factor)
    else:
        place += by_expert * set_aside - begins[by_expert]
        rows = buffer.take(num_experts * set_aside)
        own = source[row[order]]
        rows[place] = own if factor is None else own.mul_(factor)
    return Grouped(rows, counts, order, place)


def pack(
    hidden: Tensor, assignments: Assignments, buffer: RowBuffer, weighted: bool = False, room: Room = lambda *_: None
) -> Packed:
    """Gather the token row of every assignment, expert by expert.

    ``weighted`` scales the rows by their routing weight, here instead of in `Packed.combine`.
    """
    weight, experts = assignments.weight, assignments.num_experts
    grouped = group(
        hidden, assignments.token, assignments.expert, experts, assignments.num_tokens, buffer, room,
        weight if weighted else None,
    )  # fmt: skip
    place = torch.empty_like(grouped.order)
    place[grouped.order] = grouped.place
    first = starts(assignments.token, assignments.num_tokens)
    return Packed(grouped.rows, grouped.counts, place, first, torch.ones_like(weight) if weighted else weight)


def mix(hidden: Tensor, slots: SoftSlots, num_experts: int, buffer: RowBuffer) -> Mixed:
    """Compute the row of every slot: all tokens of ``hidden`` [T, H], by the slot's shares of them."""
    num_slots = slots.dispatch.shape[1]
    rows = buffer.take(num_slots)
    torch.mm(slots.dispatch.to(hidden.dtype).t(), hidden, out=rows)
    counts = torch.full((num_experts,), num_slots // num_experts, device=hidden.device)
    return Mixed(rows, counts, slots.combine.to(hidden.dtype))


def starts(ascending: Tensor, count: int) -> Tensor:
    """Where each of 0 … ``count`` − 1 begins in ``ascending`` values. Unlike a bincount it never waits for a GPU."""
    return torch.searchsorted(ascending, torch.arange(count, device=ascending.device))
