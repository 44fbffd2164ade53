"""From router logits to weights, as token choice and group-limited routing share it.

Shapes: ``T`` tokens, ``E`` experts, ``k`` experts a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


class Scoring:
    """The affinity a = softmax(s) or sigmoid(s), a bias for choosing, and the weights of what was chosen."""

    def __init__(self, kind: str, renormalize: bool, route_scale: float, bias: Sequence[float] | None) -> None:
        self.kind, self.renormalize, self.route_scale = kind, renormalize, route_scale
        self.bias = None if bias is None else torch.tensor(bias, dtype=torch.float32)

    def bias_for(self, scores: Tensor, given: Tensor | None) -> Tensor | None:
        """``given`` [E], or else the bias from the parameters, where the scores are."""
        if given is not None:
            return given.to(scores.device)
        if self.bias is not None and self.bias.device != scores.device:
            self.bias = self.bias.to(scores.device)
        return self.bias

    def affinity(self, scores: Tensor) -> Tensor:
        """a [T, E]."""
        return scores.sigmoid() if self.kind == "sigmoid" else scores.softmax(dim=-1)

    def weights(self, chosen: Tensor, scores: Tensor) -> Tensor:
        """Weights [T, k] of the ``chosen`` scores [T, k] among all ``scores`` [T, E].

        Renormalised weights are softmax over log a: the softmax's own denominator over all E cancels, and a token whose
        affinities all underflow to 0 still has weights that sum to 1.
        """
        if self.renormalize:
            log_affinity = F.logsigmoid(chosen) if self.kind == "sigmoid" else chosen
            return _softmax(log_affinity) * self.route_scale
        if self.kind == "sigmoid":
            return chosen.sigmoid() * self.route_scale
        return (chosen - scores.logsumexp(dim=-1, keepdim=True)).exp() * self.route_scale


def _softmax(logits: Tensor) -> Tensor:
    """softmax [T, k], and equal weights where a bias chose experts whose scores are all −inf."""
    return logits.clamp(min=torch.finfo(logits.dtype).min).softmax(dim=-1)
