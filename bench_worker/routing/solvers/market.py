"""Prices at which every expert is asked for about equally often, by smoothed Newton steps.

Shapes: ``T`` tokens, ``E`` experts, ``k`` experts a token.

A token takes expert e to a degree x [T, E] that falls smoothly with the expert's price p_e: at k = 1 the softmax of
(s − p) / ε, and above it σ((s − p_e − u_t) / ε), where the token's own threshold u_t makes its k degrees sum to k. The
prices have to make every expert's degrees sum to k·T/E. This is the transportation problem with an entropy added
(Sinkhorn's, and that of 0/1 flows), and its prices go to the problem's own as ε goes to 0. So ε falls level by level,
and each level takes Newton steps: on p, and on u with it where there are thresholds, which are eliminated, so that E
equations are left.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Newton steps a level, at most. From a step shorter than SETTLED · ε on, the next level does better.
STEPS = 4
SETTLED = 6.0
#: No price and no threshold moves further than this many ε in one step.
REACH = 4.0


class Market:
    """Prices ``price`` [E] of the experts for tokens with ``scores`` [T, E] that take ``top_k`` < E experts each."""

    def __init__(self, scores: Tensor, top_k: int, price: Tensor) -> None:
        self.scores, self.top_k, self.price = scores, top_k, price
        fast = scores.is_cuda or torch.cpu.get_capabilities().get("avx512_bf16", False)
        self._coarse = torch.bfloat16 if fast else torch.float32  # enough for the curvature
        self._degree = torch.empty_like(scores)
        if top_k > 1:
            best, _ = self.demand()
            self._threshold = (best[:, top_k - 1] + best[:, top_k]) / 2
            self._slope = torch.empty_like(scores)

    def demand(self) -> tuple[Tensor, Tensor]:
        """What each token likes best, k + 1 experts in order: scores less prices [T, k+1], and the experts."""
        best, order = (self.scores - self.price).topk(self.top_k + 1)
        return best, order

    def settle(self, epsilon: float) -> None:
        """Bring the prices to the level ``epsilon``."""
        step = self._step_of_one if self.top_k == 1 else self._step_of_many
        for _ in range(STEPS):
            if step(epsilon) < SETTLED:
                return

    def _step_of_one(self, epsilon: float) -> float:
        """A step at k = 1; how far the furthest price wanted to move, in ε."""
        degree = torch.sub(self.scores, self.price, out=self._degree).mul_(1 / epsilon).softmax(dim=1)
        coarse = degree.to(self._coarse)
        step = self._newton(coarse, coarse, self._over(degree))
        return self._move(step, epsilon)[0]

    def _step_of_many(self, epsilon: float) -> float:
        """A step at k above 1; how far the furthest price wanted to move, in ε."""
        degree, slope = self._degree, self._slope
        torch.sub(self.scores, self.price, out=degree).sub_(self._threshold[:, None]).mul_(1 / epsilon).sigmoid_()
        token_over, expert_over = degree.sum(dim=1) - self.top_k, self._over(degree)
        torch.addcmul(degree, degree, degree, value=-1, out=slope)  # ε · ∂x/∂s = x − x²
        token_slope = slope.sum(dim=1).clamp_(min=1e-3)  # a token that has decided has none
        share = torch.div(slope, token_slope[:, None], out=degree)
        step = self._newton(slope.to(self._coarse), share.to(self._coarse), expert_over - share.t() @ token_over)
        largest, scale = self._move(step, epsilon)
        token_step = ((token_over - slope @ step) / token_slope).mul_(scale).clamp_(-REACH, REACH)
        self._threshold += epsilon * token_step
        return largest

    def _over(self, degree: Tensor) -> Tensor:
        """By how much the demand for each expert [E] exceeds its part."""
        num_tokens, num_experts = degree.shape
        return degree.sum(dim=0) - self.top_k * num_tokens / num_experts

    @staticmethod
    def _newton(slope: Tensor, share: Tensor, over: Tensor) -> Tensor:
        """The step [E], in ε, with (diag(Σ_t slope) − slopeᵀ · share) · step = over.

        The diagonal, taken as the sums of the product's rows, keeps the matrix semidefinite in few digits; a trace is
        added since a constant on all prices is free.
        """
        joint = (slope.t() @ share).double()
        curve = torch.diag(joint.sum(dim=1) * (1 + 1e-4) + 1e-6) - joint
        return torch.linalg.solve(curve, over.double()).float()

    def _move(self, step: Tensor, epsilon: float) -> tuple[float, float]:
        """Move the prices by ``step``, or by as much of it as `REACH` allows: its length, and how much that was."""
        largest = float(step.abs().max())
        scale = min(1.0, REACH / largest) if largest else 1.0
        self.price = self.price + epsilon * scale * step
        return largest, scale
