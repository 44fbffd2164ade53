"""Router scores with a given expert popularity.

Shapes: ``T`` tokens, ``E`` experts.

``s = log w + G`` with standard Gumbel noise ``G`` makes top-k a Plackett-Luce sample without replacement in which an
expert is first with probability ``w_e / Σw`` (Yellott 1977). The popularity is set **before** top-k; the load that
results after it is measured and reported, never assumed.
"""

from __future__ import annotations

import torch
from torch import Tensor


def popularity(profile: str, num_experts: int, skew: float, seed: int) -> Tensor:
    """Weights w [E] float64, summing to 1, of the ``profile``: ``uniform``, or ``zipf`` with w ∝ rank^−skew.

    Which expert has which rank is a seeded permutation, so that layers with different seeds have different hot experts.
    """
    if profile == "uniform":
        return torch.full((num_experts,), 1.0 / num_experts, dtype=torch.float64)
    if profile != "zipf":
        raise ValueError(f"profile: {profile!r} is not one of uniform, zipf")
    ranked = torch.arange(1, num_experts + 1, dtype=torch.float64).pow(-skew)
    place = torch.randperm(num_experts, generator=torch.Generator().manual_seed(seed))
    return (ranked / ranked.sum())[place]


def gumbel_scores(weights: Tensor, num_tokens: int, generator: torch.Generator) -> Tensor:
    """Scores [T, E] float32 = log ``weights`` + standard Gumbel noise, one independent draw a token."""
    noise = torch.empty(num_tokens, weights.numel()).exponential_(generator=generator)
    return weights.log().float() - noise.log()
