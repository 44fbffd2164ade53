"""Bringing rows to the ranks that compute them, and their results back: one interface, and its modes.

- ``single``: one rank; nothing is exchanged, and `bench_worker.layer.MoELayer` runs the layer.
- `Virtual`: all ranks in one process, one after the other; only the time on the wires is modelled.
- `Distributed`: one rank a process; the rows really travel.

Shapes: ``R`` ranks, ``P`` physical experts, P/R of them on each rank, ``N`` rows that a rank dispatches, ``M`` rows
that it computes, ``H`` hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from bench_worker.kernels.permute import RowBuffer
from bench_worker.parallel.all_to_all import all_to_all
from bench_worker.parallel.common_clock import clock_offsets_us
from bench_worker.parallel.rank_layer import Inbound, Outbound

__all__ = ["Distributed", "Exchange", "Virtual"]

T = TypeVar("T")


class Exchange(Protocol):
    """``ranks`` are those that this process executes; lists have one entry for each of them."""

    @property
    def ranks(self) -> Sequence[int]: ...

    @property
    def clock_offset_us(self) -> float:
        """How far this process's monotonic clock is ahead of rank 0's."""
        ...

    @property
    def clock_offsets_us(self) -> list[float]:
        """Of every rank; empty where all share one clock."""
        ...

    def meet(self) -> None:
        """Return when all ranks have come here."""
        ...

    def gather(self, own: Sequence[T]) -> list[T]:
        """What each rank has to say, in the order of ranks, to all of them. ``own``: of the executed ones."""
        ...

    def poison(self) -> None:
        """Fill the buffers with NaN, so that a row nobody wrote shows in the result."""
        ...

    def dispatch(self, sent: Sequence[Outbound]) -> list[Inbound]:
        """Every row to the rank that holds its expert."""
        ...

    def combine(self, results: Sequence[Tensor]) -> list[Tensor]:
        """The results [M, H] of what the last `dispatch` brought, back to where the rows came from: [N, H] each, in the
        order in which they were dispatched."""
        ...

    def all_reduce(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The sum of ``parts`` over each tensor-parallel group, on all of its ranks. May be written over the parts."""
        ...

    def all_gather(self, parts: Sequence[Tensor], totals: Sequence[int]) -> list[Tensor]:
        """The rows of ``parts`` [·, W] of each group, rank after rank, on all of its ranks. ``totals``: as many rows as
        each one's group has, of which every rank has an equal part, the first ones one more."""
        ...


class Virtual:
    """Copies rows in memory, in one gather for all ranks: it is not timed, so it need not look like a network."""

    clock_offset_us = 0.0
    clock_offsets_us: list[float] = []

    def __init__(self, num_ranks: int, hidden: int, dtype: torch.dtype, device: torch.device, tp: int = 1) -> None:
        self.ranks, self._tp = range(num_ranks), tp
        self._inbound, self._back = (RowBuffer(hidden, dtype, device) for _ in range(2))
        self._order = torch.empty(0, dtype=torch.int64, device=device)
        self._dispatched: list[int] = []

    def meet(self) -> None:
        """They are all here."""

    def gather(self, own: Sequence[T]) -> list[T]:
        return list(own)

    def poison(self) -> None:
        self._inbound.poison()
        self._back.poison()

    def dispatch(self, sent: Sequence[Outbound]) -> list[Inbound]:
        num_ranks = len(self.ranks)
        counts = torch.stack([one.counts for one in sent]).view(num_ranks, num_ranks, -1)  # [source, destination, P/R]
        self._dispatched = [one.rows.shape[0] for one in sent]
        destination = torch.arange(num_ranks, device=counts.device).repeat(num_ranks)
        self._order = destination.repeat_interleave(counts.sum(dim=2).flatten()).sort(stable=True).indices
        rows = self._inbound.take(self._order.numel())
        torch.index_select(torch.cat([one.rows for one in sent]), 0, self._order, out=rows)
        received = counts.sum(dim=(0, 2)).tolist()
        return [Inbound(own, counts[:, rank]) for rank, own in enumerate(rows.split(received))]

    def combine(self, results: Sequence[Tensor]) -> list[Tensor]:
        rows = self._back.take(self._order.numel())
        rows[self._order] = torch.cat(list(results))
        return list(rows.split(self._dispatched))

    def all_reduce(self, parts: Sequence[Tensor]) -> list[Tensor]:
        return self._in_groups(parts, lambda own: reduce(Tensor.add_, own))

    def all_gather(self, parts: Sequence[Tensor], totals: Sequence[int]) -> list[Tensor]:
        return self._in_groups(parts, torch.cat)

    def _in_groups(self, parts: Sequence[Tensor], made: Callable[[list[Tensor]], Tensor]) -> list[Tensor]:
        """For each rank what is ``made`` of the parts of its group, once for all of its ranks."""
        groups = [made(list(parts[first : first + self._tp])) for first in self.ranks[:: self._tp]]
        return [groups[rank // self._tp] for rank in self.ranks]


class Distributed:
    """all-to-all with uneven splits over ``group``, and collectives of its groups of ``tp``: gloo on the CPU, NCCL on
    CUDA. All ranks make theirs in the same order."""

    def __init__(
        self,
        hidden: int,
        dtype: torch.dtype,
        device: torch.device,
        group: dist.ProcessGroup | None = None,
        tp: int = 1,
    ) -> None:
        self._group, self._size = group, dist.get_world_size(group)
        self.ranks = (dist.get_rank(group),)
        self._inbound, self._back = (RowBuffer(hidden, dtype, device) for _ in range(2))
        self._tp, self._team = tp, _own_group(self._size, tp) if tp > 1 else None
        self._sent: list[int] = []
        self._received: list[int] = []
        #: [R]: how far each rank's clock is ahead of rank 0's; empty where all are on one host.
        self.clock_offsets_us = clock_offsets_us(group)
        self.clock_offset_us = self.clock_offsets_us[self.ranks[0]] if self.clock_offsets_us else 0.0

    def meet(self) -> None:
        dist.barrier(group=self._group)

    def gather(self, own: Sequence[T]) -> list[T]:
        found: list[T | None] = [None] * self._size
        dist.all_gather_object(found, own[0], group=self._group)
        return cast(list[T], found)

    def poison(self) -> None:
        self._inbound.poison()
        self._back.poison()

    def dispatch(self, sent: Sequence[Outbound]) -> list[Inbound]:
        (own,) = sent
        sending = own.counts.view(self._size, -1)
        counts = torch.empty_like(sending)
        dist.all_to_all_single(counts, sending.contiguous(), group=self._group)
        self._sent, self._received = sending.sum(dim=1).tolist(), counts.sum(dim=1).tolist()
        rows = self._inbound.take(sum(self._received))
        all_to_all(rows, own.rows, self._received, self._sent, self._group)
        return [Inbound(rows, counts)]

    def combine(self, results: Sequence[Tensor]) -> list[Tensor]:
        rows = self._back.take(sum(self._sent))
        all_to_all(rows, results[0], self._sent, self._received, self._group)
        return [rows]

    def all_reduce(self, parts: Sequence[Tensor]) -> list[Tensor]:
        (own,) = parts
        if own.numel():
            dist.all_reduce(own, group=self._team)
        return [own]

    def all_gather(self, parts: Sequence[Tensor], totals: Sequence[int]) -> list[Tensor]:
        (own,), (total,) = parts, totals
        each, longer = -(-total // self._tp), total % self._tp or self._tp
        padded = own if len(own) == each else torch.cat((own, own.new_empty(each - len(own), own.shape[1])))
        rows = own.new_empty(self._tp * each, own.shape[1])
        if total:
            dist.all_gather_single(rows.view(torch.uint8), padded.contiguous().view(torch.uint8), group=self._team)
        if longer < self._tp:
            rows = torch.cat([part[: each - (place >= longer)] for place, part in enumerate(rows.split(each))])
        return [rows]


def _own_group(size: int, tp: int) -> dist.ProcessGroup:
    """This rank's tensor-parallel group. Every rank has to make all of them."""
    made = [dist.new_group(list(range(first, first + tp))) for first in range(0, size, tp)]
    return made[dist.get_rank() // tp]
