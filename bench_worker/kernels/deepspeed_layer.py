"""DeepSpeed's own ``MoE`` layer as shipped: what a team that just uses it gets. A whole layer, not an expert backend.

Shapes: ``T`` tokens, ``H`` hidden, ``E`` experts, ``k`` experts a token.

Its own timers add up from step to step and leave out permuting and the experts, so hooks mark the stages instead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench_worker.kernels import rules
from bench_worker.kernels.base import ExpertWeights, activate
from bench_worker.kernels.deepspeed_grouped import DeepSpeedGrouped  # settles DeepSpeed's accelerator and logging
from bench_worker.routing.base import Assignments
from bench_worker.spec import Spec
from bench_worker.stages import LAYER, UNTIMED, Clock

from deepspeed.moe.layer import MoE  # isort: skip
from deepspeed.moe.sharded_moe import TopKGate, top1gating, top2gating, topkgating  # isort: skip


class DeepSpeedLayer:
    """``MoE`` in eval mode without dropping (its experts' buffers grow to the fullest one), without random token
    selection and without sampling the second expert, both of which would change the routing from call to call.

    ``shared`` computes the expert that every token visits, beside it. ``fusion`` is the expert module's, which
    DeepSpeed leaves to its user.
    """

    def __init__(
        self,
        gate: Tensor,
        experts: ExpertWeights,
        shared: Callable[[Tensor], Tensor] | None,
        activation: str,
        fusion: str,
        top_k: int,
    ) -> None:
        num_experts, hidden, intermediate = experts.down.shape
        with torch.device("meta"):
            expert = _Expert(hidden, intermediate, activation, fused=fusion == "gate_up")
            self.moe = MoE(hidden, expert, num_experts, k=top_k, drop_tokens=False, min_capacity=0, use_rts=False)
            self.gate = _InjectedGate(hidden, num_experts, top_k, drop_tokens=False, use_rts=False, min_capacity=0)
        self.gate.wg.weight = nn.Parameter(gate, requires_grad=False)
        self.moe.deepspeed_moe.gate = self.gate
        modules = self.moe.deepspeed_moe.experts.deepspeed_experts
        for module, gate_up, down in zip(modules, experts.gate_up, experts.down, strict=True):
            module.gate_up = nn.Parameter(gate_up, requires_grad=False)
            module.down = nn.Parameter(down, requires_grad=False)
        self.moe.eval()
        self.shared = shared
        self.num_experts = num_experts
        self._mark: Callable[[str], None] = _nothing
        self.gate.product_done = lambda: self._mark("route.gate")
        self.gate.register_forward_hook(lambda *_: self._mark("route.select"))
        routed = self.moe.deepspeed_moe.experts
        routed.register_forward_pre_hook(lambda *_: self._mark("permute"))
        routed.register_forward_hook(lambda *_: self._mark("experts" if shared is None else "experts.routed"))

    @staticmethod
    def supports(spec: Spec, device: torch.device) -> str | None:
        return rules.refusal("deepspeed_layer", spec) or DeepSpeedGrouped.supports(spec, device)

    def computed_rows(self, counts: np.ndarray, num_tokens: int) -> int:
        """Every expert computes as many rows as the fullest one."""
        return self.num_experts * int(counts.max())

    def forward(
        self, hidden: Tensor, scores: Tensor, clock: Clock, token_ids: Tensor | None = None
    ) -> tuple[Tensor, Assignments]:
        """As `bench_worker.layer.MoELayer.forward`."""
        self._mark = clock.inner
        self.gate.scores = scores
        out, _, _ = self.moe(hidden)
        clock.inner("combine")
        if self.shared is not None:
            out += self.shared(hidden)
            clock.inner("experts.shared")
        clock.outer(LAYER)
        assignments = self.gate.assignments()
        clock.outer(UNTIMED)
        return out, assignments


class _Expert(nn.Module):
    """The expert that a user would write; weights are put in afterwards."""

    def __init__(self, hidden: int, intermediate: int, activation: str, fused: bool) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(2 * intermediate, hidden), requires_grad=False)
        self.down = nn.Parameter(torch.empty(hidden, intermediate), requires_grad=False)
        self.activation, self.fused = activation, fused

    def forward(self, rows: Tensor) -> Tensor:
        if self.fused:
            gate, up = F.linear(rows, self.gate_up).chunk(2, dim=-1)
        else:
            gate, up = (F.linear(rows, weight) for weight in self.gate_up.chunk(2))
        return F.linear(activate(gate, up, self.activation), self.down)


class _InjectedGate(TopKGate):
    """DeepSpeed's gate: computes its product for its time, then chooses by the scores that it is given."""

    scores: Tensor
    product_done: Callable[[], None]

    def forward(
        self, input: Tensor, used_token: Tensor | None = None, sparse_routes: bool = False, use_tutel: bool = False
    ) -> tuple[Tensor, ...]:
        F.linear(input.float(), self.wg.weight.float())
        self.product_done()
        if self.k == 1:
            chosen = top1gating(
                self.scores, 1.0, 0, used_token, drop_tokens=False, use_rts=False, sparse_routes=sparse_routes
            )
        elif self.k == 2:
            chosen = top2gating(
                self.scores, 1.0, 0, drop_tokens=False, top2_2nd_expert_sampling=False, sparse_routes=sparse_routes
            )
        else:
            chosen = topkgating(self.scores, self.k, 1.0, 0, drop_tokens=False, sparse_routes=sparse_routes)
        self._chosen = chosen
        return chosen

    def assignments(self) -> Assignments:
        """What the last call chose."""
        _, _, num_experts, expert, _, weight, _ = self._chosen
        top_k, tokens = expert.shape
        token = torch.arange(tokens, device=expert.device).repeat_interleave(top_k)
        return Assignments(token, expert.T.flatten().long(), weight.T.flatten().float(), tokens, num_experts)


def _nothing(stage: str) -> None:
    pass
