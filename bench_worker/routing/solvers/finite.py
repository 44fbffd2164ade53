"""Scores made fit for a solver: the same problem, in finite numbers around 0.

Shapes: ``T`` tokens, ``E`` experts.
"""

from __future__ import annotations

from torch import Tensor


def finite(scores: Tensor) -> tuple[Tensor, float]:
    """``scores`` [T, E], relative to each token's best, and how far apart they lie (standard deviation, 1 for none).

    What is added to all scores of a token changes no choice. −inf becomes a number so low that taking it costs more
    than any chain of moves, which visits an expert once at most, can save: it is chosen only where nothing else can be.
    """
    relative = scores - scores.amax(dim=1, keepdim=True)
    lowest = relative.amin()
    if lowest > -float("inf"):
        return relative, _spread(relative - relative.mean(dim=1, keepdim=True))
    allowed = relative.isfinite()
    lowest = relative.where(allowed, 0.0).amin()
    forbidden = (scores.shape[1] + 2) * lowest - 1
    return relative.where(allowed, forbidden), _spread(relative[allowed])


def _spread(values: Tensor) -> float:
    spread = float(values.std(correction=0))
    return spread if spread > 0 else 1.0
