"""Expert choice: each expert picks its best tokens (Zhou 2202.09368).

Non-causal: whether a token is picked depends on the other tokens of the step, later ones included, so a model routed
like this can't decode token by token in production.

Shapes: ``T`` tokens, ``E`` experts, ``C`` tokens an expert takes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bench_worker.routing.base import Assignments, Router
from bench_worker.strategies import chosen_tokens


class ExpertChoice(Router):
    """p = softmax(s) over experts; each expert takes the C = max(1, floor(T·k/E + 0.5)) tokens of largest p, all T
    where C is above T; weights p. A token has between 0 and E experts."""

    strategy = "expert_choice"

    def __init__(self, num_experts: int, top_k: int) -> None:
        super().__init__(num_experts)
        self.top_k = top_k

    def select(self, scores: Tensor, token_ids: Tensor | None = None, bias: Tensor | None = None) -> Assignments:
        num_tokens, num_experts = scores.shape
        probability = scores.softmax(dim=-1)
        takes = chosen_tokens(num_tokens, num_experts, self.top_k)
        picked = probability.t().contiguous().topk(takes, sorted=False).indices  # [E, C]
        # Marked in a table of tokens and experts and read row by row, the pairs come out token-major, without a sort.
        pair = picked * num_experts + torch.arange(num_experts, device=scores.device)[:, None]
        marked = torch.zeros(num_tokens * num_experts, dtype=torch.bool, device=scores.device)
        marked[pair.flatten()] = True
        pair = torch.nonzero_static(marked, size=pair.numel())[:, 0]  # of known size: a GPU need not be waited for
        token = pair.div(num_experts, rounding_mode="floor")
        weight = probability.flatten().index_select(0, pair)
        return Assignments(token, pair - token * num_experts, weight, num_tokens, num_experts)
