"""Token choice: each token picks its k best experts (Switch 2101.03961, GShard 2006.16668; Mixtral, Qwen3).

Shapes: ``T`` tokens, ``E`` experts, ``k`` experts a token, ``N = T·k`` assignments before any drop.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bench_worker import strategies
from bench_worker.routing.base import Assignments, Router, token_major
from bench_worker.routing.scoring import Scoring


class TokenChoice(Router):
    """p = softmax(s) or sigmoid(s); the k largest p (plus ``bias``, when choosing); weights p.

    ``renormalize`` divides a token's weights by their sum, ``route_scale`` multiplies them. ``capacity_factor`` cf lets
    an expert keep only the C = ceil(cf·k·T/E) assignments of largest weight, earlier tokens first among equals, and
    counts the others as dropped; None drops nothing.
    """

    strategy = "token_choice"

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        scoring: str = "softmax",
        renormalize: bool = True,
        route_scale: float = 1.0,
        capacity_factor: float | None = None,
        bias: Sequence[float] | None = None,
    ) -> None:
        super().__init__(num_experts)
        self.top_k = top_k
        self.scoring = Scoring(scoring, renormalize, route_scale, bias)
        self.capacity_factor = capacity_factor

    def select(self, scores: Tensor, token_ids: Tensor | None = None, bias: Tensor | None = None) -> Assignments:
        bias = self.scoring.bias_for(scores, bias)
        if bias is None:  # softmax and sigmoid keep the order of the scores, so these choose: cheaper, and no ties at 1
            chosen, expert = scores.topk(self.top_k)
        else:
            expert = (self.scoring.affinity(scores) + bias).topk(self.top_k).indices
            chosen = scores.gather(1, expert)
        routed = token_major(expert, self.scoring.weights(chosen, scores), self.num_experts)
        return routed if self.capacity_factor is None else self._within_capacity(routed, self.capacity_factor)

    def _within_capacity(self, routed: Assignments, factor: float) -> Assignments:
        token, expert, weight, num_tokens = routed.token, routed.expert, routed.weight, routed.num_tokens
        capacity = strategies.capacity(num_tokens, self.num_experts, self.top_k, factor)
        kept = heaviest(expert, weight, capacity, self.num_experts)
        dropped = expert.numel() - kept.numel()
        return Assignments(token[kept], expert[kept], weight[kept], num_tokens, self.num_experts, dropped)


def heaviest(expert: Tensor, weight: Tensor, capacity: int, num_experts: int) -> Tensor:
    """Indices, ascending, of the assignments that are among their expert's ``capacity`` heaviest."""
    by_weight = weight.argsort(descending=True, stable=True)
    order = by_weight[expert[by_weight].argsort(stable=True)]  # expert by expert, heaviest first
    counts = torch.bincount(expert, minlength=num_experts)
    first = counts.cumsum(0) - counts
    place = torch.arange(expert.numel(), device=expert.device) - first[expert[order]]
    return order[place < capacity].sort().values
