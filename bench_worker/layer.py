"""The one forward pass of a MoE layer, read top to bottom in stage order.

Shapes: ``T`` tokens, ``H`` hidden, ``I`` expert intermediate, ``E`` experts, ``N`` assignments or slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from bench_worker.kernels.base import ExpertBackend, ExpertWeights
from bench_worker.kernels.permute import Mixed, Packed, RowBuffer, mix, pack
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
    experts: ExpertWeights
    shared: DenseWeights | None


def dense(hidden: Tensor, weights: DenseWeights) -> Tensor:
    """down(silu(gate(x)) · up(x)) for all rows of ``hidden`` [T, H]."""
    gate, up = F.linear(hidden, weights.gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, weights.down)


class MoELayer:
    """One MoE layer with its strategy and expert backend. ``weight_on_input`` scales rows before the experts instead of
    their outputs after (Llama 4)."""

    def __init__(
        self, weights: LayerWeights, router: Router, experts: ExpertBackend, buffer: RowBuffer, weight_on_input: bool
    ) -> None:
        self.weights = weights
        self.router = router
        self.experts = experts
        self.buffer = buffer
        self.weight_on_input = weight_on_input

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

        packed = self._pack(hidden, routed)
        clock.inner("permute")

        outputs = self.experts(packed.rows, packed.counts)
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

    def _pack(self, hidden: Tensor, routed: Assignments | SoftSlots) -> Packed | Mixed:
        if isinstance(routed, SoftSlots):  # a slot's row is weighted as it is mixed, wherever the model weights rows
            return mix(hidden, routed, self.router.num_experts, self.buffer)
        return pack(hidden, routed, self.buffer, weighted=self.weight_on_input)
