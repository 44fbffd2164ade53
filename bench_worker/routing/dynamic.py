"""Dynamic routing: as many experts as a token's probabilities ask for (Huang 2403.07652).

The router's confidence is not the token's difficulty: a sure router takes few experts, whatever the token needs.

Shapes: ``T`` tokens, ``E`` experts, ``M`` experts a token gets at most.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bench_worker.routing.base import Assignments, Router
from bench_worker.strategies import TOP_P, most_experts


class Dynamic(Router):
    """p = softmax(s), sorted from the largest: a token takes the shortest prefix whose sum exceeds ``top_p``, at least
    one expert and at most ``max_experts`` (2k by default), also where no sum ever exceeds it. Weights p as they are."""

    strategy = "dynamic"

    def __init__(
        self, num_experts: int, top_k: int | None = None, top_p: float = TOP_P, max_experts: int | None = None
    ) -> None:
        super().__init__(num_experts)
        self.top_p = top_p
        self.max_experts = most_experts(num_experts, top_k, max_experts)

    def select(self, scores: Tensor, token_ids: Tensor | None = None, bias: Tensor | None = None) -> Assignments:
        probability, expert = scores.softmax(dim=-1).topk(self.max_experts)  # [T, M]
        taken = torch.ones_like(expert, dtype=torch.bool)
        # Taken while the sum of those before has not passed top_p; rounding may not carry a sum above 1.
        torch.le(probability[:, :-1].cumsum(dim=-1).clamp_(max=1.0), self.top_p, out=taken[:, 1:])
        place = taken.flatten().nonzero()[:, 0]
        token = place.div(self.max_experts, rounding_mode="floor")
        chosen, weight = (values.flatten().index_select(0, place) for values in (expert, probability))
        return Assignments(token, chosen, weight, scores.shape[0], self.num_experts)
