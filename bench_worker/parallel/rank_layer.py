"""One rank's part of one MoE layer, between the exchanges with the others.

Shapes: ``T`` tokens of this rank, ``H`` hidden, ``E`` logical and ``P`` physical experts, ``R`` ranks, ``N`` rows that
this rank dispatches, ``M`` rows that it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bench_worker.kernels.base import ExpertBackend
from bench_worker.kernels.permute import Grouped, RowBuffer, group, mix, pack, starts
from bench_worker.layer import DenseWeights, dense
from bench_worker.parallel.replicas import Replicas
from bench_worker.routing import Assignments, Router, SoftSlots
from bench_worker.stages import Clock


@dataclass(frozen=True)
class Outbound:
    """``rows`` [N, H] grouped by physical expert, so by the rank that holds it, with ``counts`` int64 [P] for each.
    ``reduce`` makes the tokens' outputs [T, H] of the rows' results."""

    rows: Tensor
    counts: Tensor
    routed: Assignments | SoftSlots
    reduce: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Inbound:
    """``rows`` [M, H] for this rank's experts, from rank after rank and in each grouped by expert; ``counts`` int64
    [R, P/R] of them."""

    rows: Tensor
    counts: Tensor


class RankLayer:
    """``gate`` [E, H]; ``experts`` computes this rank's physical experts, in order. ``buffers`` hold mixed, dispatched
    and own rows, and may be shared by the layers of a rank; those for dispatched rows by no two ranks."""

    def __init__(
        self,
        rank: int,
        gate: Tensor,
        shared: DenseWeights | None,
        experts: ExpertBackend,
        router: Router,
        replicas: Replicas,
        num_physical: int,
        buffers: tuple[RowBuffer, RowBuffer, RowBuffer],
        weight_on_input: bool,
    ) -> None:
        self.rank, self.gate, self.shared, self.experts, self.router = rank, gate, shared, experts, router
        self.replicas, self.num_physical, self.weight_on_input = replicas, num_physical, weight_on_input
        self._mixed, self._sent, self._own = buffers

    def send(self, hidden: Tensor, scores: Tensor, token_ids: Tensor, clock: Clock) -> Outbound:
        """Choose experts for ``hidden`` [T, H] by ``scores`` [T, E] or ``token_ids`` [T], and pack a row for each."""
        F.linear(hidden, self.gate)
        clock.inner("route.gate")
        routed = select(self.router, scores, token_ids)
        clock.inner("route.select")
        outbound = self._mix(hidden, routed) if isinstance(routed, SoftSlots) else self._pack(hidden, routed)
        clock.inner("permute.pack")
        return outbound

    def compute(self, inbound: Inbound, hidden: Tensor, clock: Clock) -> tuple[Tensor, Tensor | None]:
        """Results [M, H] of the inbound rows, in their order; and the shared expert's of ``hidden`` [T, H], where there
        is one."""
        own = self._by_expert(inbound)
        clock.inner("permute.local")
        outputs = self.experts(own.rows, own.counts) if own.rows.numel() else own.rows
        shared = None
        if self.shared is None:
            clock.inner("experts")
        else:
            clock.inner("experts.routed")
            shared = dense(hidden, self.shared)
            clock.inner("experts.shared")
        inbound.rows[own.order] = outputs[own.place]
        clock.inner("combine.pack")
        return inbound.rows, shared

    def computed_rows(self, received: Tensor) -> int:
        """Rows that the experts compute, padding included, of ``received`` int64 [R, P/R]."""
        counts = received.sum(dim=0)
        room = self.experts.room(counts, int(counts.sum()))
        return int(counts.sum()) if room is None else counts.numel() * room

    def _pack(self, hidden: Tensor, routed: Assignments) -> Outbound:
        physical = self.replicas.physical(routed.expert, self.rank)
        moved = replace(routed, expert=physical, num_experts=self.num_physical)
        packed = pack(hidden, moved, self._sent, weighted=self.weight_on_input)
        return Outbound(packed.rows, packed.counts, routed, packed.combine)

    def _mix(self, hidden: Tensor, slots: SoftSlots) -> Outbound:
        """A slot's row goes to one copy of its expert."""
        num_experts = self.router.num_experts
        mixed = mix(hidden, slots, num_experts, self._mixed)
        expert = torch.arange(num_experts, device=hidden.device).repeat_interleave(mixed.counts)
        by_physical, order = self.replicas.physical(expert, self.rank).sort(stable=True)
        rows = self._sent.take(order.numel())
        torch.index_select(mixed.rows, 0, order, out=rows)
        shares = mixed.shares[:, order]
        return Outbound(
            rows, starts(by_physical, self.num_physical + 1).diff(), slots, lambda outputs: shares @ outputs
        )

    def _by_expert(self, inbound: Inbound) -> Grouped:
        """The inbound rows as this rank's experts compute them."""
        num_local, device = inbound.counts.shape[1], inbound.rows.device
        arrived = inbound.rows.shape[0]
        local = torch.arange(inbound.counts.numel(), device=device) % num_local
        expert = local.repeat_interleave(inbound.counts.flatten())
        every = torch.arange(arrived, device=device)
        return group(inbound.rows, every, expert, num_local, arrived, self._own, self.experts.room)


def select(router: Router, scores: Tensor, token_ids: Tensor) -> Assignments | SoftSlots:
    """As `Router.select`; without tokens there is nothing to choose, whatever the strategy."""
    if scores.shape[0]:
        return router.select(scores, token_ids)
    none = torch.empty(0, dtype=torch.int64, device=scores.device)
    return Assignments(none, none, scores.new_empty(0), 0, router.num_experts)
