"""Balanced routing: the best assignment in which every expert gets equally many tokens of the step (BASE 2103.16716;
S-BASE 2202.01169).

It looks at all tokens of the step together. BASE itself does so in training only, and takes each token's best expert
at inference.

Shapes: ``T`` tokens, ``E`` experts, ``k`` experts a token.
"""

from __future__ import annotations

from torch import Tensor

from bench_worker.routing.base import Assignments, Router, token_major
from bench_worker.routing.solvers import SOLVERS


class Balanced(Router):
    """Each token gets k distinct experts, each expert floor or ceil of k·T/E tokens, and the sum of the chosen scores
    is as large as can be: a transportation problem with 0/1 flows. Weights sigmoid(s).

    ``solver``: ``auction`` takes milliseconds and is at or next to the optimum, ``exact`` takes seconds to minutes.
    """

    strategy = "balanced"

    def __init__(self, num_experts: int, top_k: int, solver: str = "auction") -> None:
        super().__init__(num_experts)
        self.top_k = top_k
        self.solver = solver

    def select(self, scores: Tensor, token_ids: Tensor | None = None, bias: Tensor | None = None) -> Assignments:
        expert = SOLVERS[self.solver](scores, self.top_k)
        return token_major(expert, scores.gather(1, expert).sigmoid(), self.num_experts)
