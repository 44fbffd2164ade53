"""The one forward pass of a MoE layer, read top to bottom in stage order.

Shapes: ``T`` tokens, ``H`` hidden, ``I`` expert intermediate, ``E`` experts, ``N`` assignments or slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench_worker.kernels.base import Experts, ExpertSource
from bench_worker.kernels.permute import Mixed, Packed, Room, RowBuffer, mix, pack
from bench_worker.routing import Assignments, Router, SoftSlots
from bench_worker.stages import LAYER, Clock


@dataclass(frozen=True)
class DenseWeights:
    """A dense SwiGLU: ``gate_up`` [2D, H], ``down`` [H, D]."""

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class LayerWeights:
    """``gate`` [E, H] is the router's matrix; ``shared`` the expert that every token visits, where there is one."""

    gate: Tensor
    experts: ExpertSource
    shared: DenseWeights | None


def dense(hidden: Tensor, weights: DenseWeights) -> Tensor:
    """down(silu(gate(x)) · up(x)) for all rows of ``hidden`` [T, H]."""
    gate, up = F.linear(hidden, weights.gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, weights.down)


class MoELayer:
    """One MoE layer with its strategy and expert backend. ``weight_on_input`` scales rows before the experts instead of
    their outputs after (Llama 4)."""

    def __init__(
        self, weights: LayerWeights, router: Router, experts: Experts, buffer: RowBuffer, weight_on_input: bool
    ) -> None:
        self.weights = weights
        self.router = router
        self.experts = experts
        self.buffer = buffer
        self.weight_on_input = weight_on_input

    def computed_rows(self, counts: np.ndarray, num_tokens: int) -> int:
        """Rows that the experts compute, padding included, where ``counts`` [E] rows belong to each of them."""
        room = self.experts.at(num_tokens).room(torch.from_numpy(counts), num_tokens)
        return int(counts.sum()) if room is None else counts.size * room

    def forward(
        self, hidden: Tensor, scores: Tensor, clock: Clock, token_ids: Tensor | None = None
    ) -> tuple[Tensor, Assignments | SoftSlots]:
        """Output [T, H] of ``hidden`` [T, H], routed by ``scores`` [T, E] or ``token_ids`` int64 [T]; who went where.

        The gate's product with the real hidden states is computed for its time; the injected scores decide, so that
        every variant routes the same load. The router has checked them before: see `Router.checked`.
        """
        F.linear(hidden, self.weights.gate)
        clock.inner("route.gate")

        routed = self.router.select(scores, token_ids)
        clock.inner("route.select")

        experts = self.experts.at(hidden.shape[0])
        packed = self._pack(hidden, routed, experts.room)
        clock.inner("permute")

        outputs = experts(packed.rows, packed.counts)
        if self.weights.shared is None:
            clock.inner("experts")
        else:
            clock.inner("experts.routed")
            shared = dense(hidden, self.weights.shared)
            clock.inner("experts.shared")

        combined = packed.combine(outputs)
        if self.weights.shared is not None:
            combined += shared
        clock.inner("combine")
        clock.outer(LAYER)
        return combined, routed

    def _pack(self, hidden: Tensor, routed: Assignments | SoftSlots, room: Room) -> Packed | Mixed:
        if isinstance(routed, SoftSlots):  # a slot's row is weighted as it is mixed, wherever the model weights rows
            return mix(hidden, routed, self.router.num_experts, self.buffer)
        return pack(hidden, routed, self.buffer, weighted=self.weight_on_input, room=room)
