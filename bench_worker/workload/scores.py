"""Router scores with a given expert load.

Shapes: ``T`` tokens, ``E`` experts, ``k`` experts a token.

``s = log w + G`` with standard Gumbel noise ``G`` makes top-k a Plackett-Luce sample without replacement in which an
expert is first with probability ``w_e / Σw`` (Yellott 1977). ``uniform`` and ``zipf`` set w, before top-k: the load
that results after it is measured and reported, never assumed. A recorded load is one after top-k: w is fitted to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench_worker.workload.plackett_luce import fit_weights


def popularity(profile: str, num_experts: int, skew: float, seed: int) -> Tensor:
    """Weights w [E] float64, summing to 1, of the ``profile``: ``uniform``, or ``zipf`` with w ∝ rank^−skew.

    Which expert has which rank is a seeded permutation, so that layers with different seeds have different hot experts.
    """
    if profile == "uniform":
        return torch.full((num_experts,), 1.0 / num_experts, dtype=torch.float64)
    if profile != "zipf":
        raise ValueError(f"profile: {profile!r} is not one of uniform, zipf")
    return zipf(num_experts, skew, seed)


def zipf(count: int, skew: float, seed: int) -> Tensor:
    """Weights [count] float64 ∝ rank^−skew, summing to 1, in seeded order."""
    ranked = torch.arange(1, count + 1, dtype=torch.float64).pow(-skew)
    place = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return (ranked / ranked.sum())[place]


def make_scores(popularity: Any, num_tokens: int, top_k: int, seed: int) -> Tensor:
    """Scores [T, E] float32 whose ``top_k`` highest give each expert its share of the assignments.

    ``popularity`` [E] sums to 1: an expert's share of all assignments after top-k, as a recording has it. No expert can
    have more than 1/k, once in every token. Raises ``ValueError`` for shares that are none, or above that.
    """
    weights = torch.from_numpy(fit_weights(np.asarray(popularity, dtype=np.float64), top_k))
    return gumbel_scores(weights, num_tokens, torch.Generator().manual_seed(seed))


def gumbel_scores(weights: Tensor, num_tokens: int, generator: torch.Generator) -> Tensor:
    """Scores [T, E] float32 = log ``weights`` + standard Gumbel noise, one independent draw a token."""
    return score(weights, torch.empty(num_tokens, weights.numel()).exponential_(generator=generator))


def score(weights: Tensor, arrivals: Tensor) -> Tensor:
    """Scores [T, E] float32 from ``weights`` [E] and standard exponential ``arrivals`` [T, E]: −log of an exponential
    is Gumbel noise. An expert of weight 0 scores far below all others, and finitely."""
    return weights.clamp(min=1e-30).log().float() - arrivals.log()


def repeated(fresh: Tensor, keep: Tensor) -> Tensor:
    """Noise [T, E] in which an expert's value stays, where ``keep`` [T, E], what it was for the token before.

    Each token's own noise is distributed as ``fresh`` [T, E]: the load stays the same, only what consecutive tokens
    have in common grows. The first token keeps nothing.
    """
    row = torch.arange(fresh.shape[0])[:, None].expand_as(keep)
    drawn = row.masked_fill(keep, 0).cummax(dim=0).values  # the last row that was drawn anew
    return fresh.gather(0, drawn)


def rank_first(scores: Tensor, experts: Tensor) -> Tensor:
    """``scores`` [T, E] rearranged within each token so that its ``experts`` int64 [T, k] hold the k highest, the first
    of them the highest; the others keep their order. This replays what a router chose, with scores as it may have had.
    """
    top_k = experts.shape[1]
    lead = scores.amax(dim=1, keepdim=True) + torch.arange(top_k, 0, -1)
    order = scores.scatter(1, experts, lead).argsort(dim=1, descending=True)
    ranked = scores.sort(dim=1, descending=True).values
    ranked[:, :top_k] += 1e-3  # not even a tie lets another in
    return torch.empty_like(scores).scatter_(1, order, ranked)
