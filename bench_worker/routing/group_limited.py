"""Group-limited routing: experts in groups, and a token's k experts from its best groups alone, so that it visits few
nodes (DeepSeek-V2 2405.04434, DeepSeek-V3 2412.19437).

Shapes: ``T`` tokens, ``E`` experts, ``k`` experts a token, ``G`` groups of ``M = E / G`` neighbouring experts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bench_worker.routing.base import Assignments, Router, token_major
from bench_worker.routing.scoring import Scoring
from bench_worker.strategies import default_groups


class GroupLimited(Router):
    """a = sigmoid(s) (V3) or softmax(s) (V2). A group scores the sum of its two largest a + ``bias`` (``top2``, V3) or
    its largest (``max``, V2); the ``topk_groups`` best groups are kept, and within them the k largest a + ``bias``
    chosen. Weights are a without the bias, renormalised where ``renormalize``, times ``route_scale`` (V3: 2.5)."""

    strategy = "group_limited"

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        num_groups: int | None = None,
        topk_groups: int | None = None,
        group_score: str | None = None,
        scoring: str = "softmax",
        renormalize: bool = True,
        route_scale: float = 1.0,
        bias: Sequence[float] | None = None,
    ) -> None:
        super().__init__(num_experts)
        self.top_k = top_k
        self.num_groups, default = default_groups(num_experts, top_k, num_groups)
        self.topk_groups = topk_groups or default
        self.group_score = group_score or ("top2" if scoring == "sigmoid" else "max")
        self.scoring = Scoring(scoring, renormalize, route_scale, bias)

    def select(self, scores: Tensor, token_ids: Tensor | None = None, bias: Tensor | None = None) -> Assignments:
        bias = self.scoring.bias_for(scores, bias)
        choosing = self.scoring.affinity(scores)
        if bias is not None:
            choosing = choosing + bias
        grouped = choosing.view(-1, self.num_groups, self.num_experts // self.num_groups)  # [T, G, M]
        kept = self._scores_of(grouped).topk(self.topk_groups, sorted=False).indices  # [T, groups kept]

        # The kept groups alone are looked at: nothing of the others can win, whatever the bias.
        size = grouped.shape[2]
        inside = grouped.gather(1, kept[:, :, None].expand(-1, -1, size)).flatten(1)  # [T, groups kept · M]
        place = inside.topk(self.top_k).indices
        expert = kept.gather(1, place // size) * size + place % size
        return token_major(expert, self.scoring.weights(scores.gather(1, expert), scores), self.num_experts)

    def _scores_of(self, grouped: Tensor) -> Tensor:
        """Group scores [T, G]. The two largest are found as two maxima: a top-k over few values costs far more."""
        if self.group_score == "max" or grouped.shape[2] == 1:
            return grouped.amax(dim=2)
        best, place = grouped.max(dim=2)
        second = grouped.scatter(2, place[:, :, None], -torch.inf).amax(dim=2)
        return best + second
