"""Token choice: each token picks its k best experts (Switch 2101.03961, GShard 2006.16668; Mixtral, Qwen3).

Shapes: ``T`` tokens, ``E`` experts, ``k`` experts a token, ``N = T·k`` assignments before any drop.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bench_worker.routing.base import Assignments


class TokenChoice:
    """p = softmax(s) or sigmoid(s); the k largest p (plus ``bias``, when choosing); weights p.

    ``renormalize`` divides a token's weights by their sum, ``route_scale`` multiplies them. ``capacity_factor`` cf lets
    an expert keep only the C = ceil(cf·k·T/E) assignments of largest weight, earlier tokens first among equals, and
    counts the others as dropped; None drops nothing.
    """

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        scoring: str = "softmax",
        renormalize: bool = True,
        route_scale: float = 1.0,
        capacity_factor: float | None = None,
    ) -> None:
        if not 1 <= top_k <= num_experts:
            raise ValueError(f"top_k: {top_k} is not between 1 and the {num_experts} experts")
        if scoring not in ("softmax", "sigmoid"):
            raise ValueError(f"scoring: {scoring!r} is not one of softmax, sigmoid")
        if capacity_factor is not None and not capacity_factor > 0:
            raise ValueError(f"capacity_factor: {capacity_factor} is not above 0")
        self.num_experts = num_experts
        self.top_k = top_k
        self.scoring = scoring
        self.renormalize = renormalize
        self.route_scale = route_scale
        self.capacity_factor = capacity_factor

    def route(self, scores: Tensor, token_ids: Tensor | None = None, bias: Tensor | None = None) -> Assignments:
        num_tokens = scores.shape[0]
        expert, weight = self._choose(scores, bias)  # [T, k]
        token = torch.arange(num_tokens, device=scores.device).repeat_interleave(self.top_k)
        expert, weight = expert.flatten(), weight.flatten()
        if self.capacity_factor is None:
            return Assignments(token, expert, weight, num_tokens, self.num_experts)
        capacity = math.ceil(self.capacity_factor * self.top_k * num_tokens / self.num_experts)
        kept = _within_capacity(expert, weight, capacity, self.num_experts)
        dropped = expert.numel() - kept.numel()
        return Assignments(token[kept], expert[kept], weight[kept], num_tokens, self.num_experts, dropped)

    def _choose(self, scores: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Experts and weights [T, k]. Softmax and sigmoid both keep the order of the scores, so without a bias these
        choose: cheaper than over all E, and large scores don't tie where a float32 sigmoid is 1."""
        if bias is None:
            chosen, expert = scores.topk(self.top_k)
        else:
            expert = (self._affinity(scores, scores) + bias).topk(self.top_k).indices
            chosen = scores.gather(1, expert)
        if self.scoring == "softmax" and self.renormalize:  # the denominator over all E cancels
            return expert, chosen.softmax(dim=-1) * self.route_scale
        weight = self._affinity(chosen, scores)
        if self.renormalize:
            weight = weight / weight.sum(dim=-1, keepdim=True)
        return expert, weight * self.route_scale

    def _affinity(self, chosen: Tensor, scores: Tensor) -> Tensor:
        """p of the ``chosen`` scores [T, any] among all ``scores`` [T, E]."""
        if self.scoring == "sigmoid":
            return chosen.sigmoid()
        return (chosen - scores.logsumexp(dim=-1, keepdim=True)).exp()


def _within_capacity(expert: Tensor, weight: Tensor, capacity: int, num_experts: int) -> Tensor:
    """Indices, ascending, of the assignments that are among their expert's ``capacity`` heaviest."""
    by_weight = weight.argsort(descending=True, stable=True)
    order = by_weight[expert[by_weight].argsort(stable=True)]  # expert by expert, heaviest first
    counts = torch.bincount(expert, minlength=num_experts)
    first = counts.cumsum(0) - counts
    place = torch.arange(expert.numel(), device=expert.device) - first[expert[order]]
    return order[place < capacity].sort().values
