"""Weights of a Plackett-Luce sample whose inclusion probabilities are given. Pure; numpy alone.

Shapes: ``E`` experts, ``k`` drawn of them without replacement, ``X`` points of an integration grid.

Sampling k of E by weights w is a race: expert e arrives after an exponential time of rate w_e, and the first k are in
(Efraimidis and Spirakis 2006). So e is in if, when it arrives, fewer than k of the others have:

    π_e = ∫ w_e · exp(−w_e·x) · P(fewer than k of the others have arrived by x) dx,

where the number that has arrived is a sum of independent Bernoulli(1 − exp(−w_j·x)).
"""

from __future__ import annotations

import numpy as np

__all__ = ["fit_weights", "inclusion"]

#: Largest relative error of a fitted expert's rate; 20,000 tokens show one of 1% at best.
PRECISION = 3e-4
ROUNDS = 100
#: An expert of every token would need an infinite weight; it may miss this many of a million.
MISSES = 1e-6
#: Gauss-Legendre points, at least, and for each e-fold of time. The integrand is smooth: four digits or more.
POINTS = 48
POINTS_A_FOLD = 6


def fit_weights(share: np.ndarray, top_k: int) -> np.ndarray:
    """Weights [E] float64, the largest 1, for which top-k sampling gives each expert its ``share`` [E] of assignments.

    A fixed point of w ← w · log(1 − k·share) / log(1 − π(w)), found at once where many experts compete for each place.
    Raises ``ValueError`` for shares that don't sum to 1 or of which one is above 1/k.
    """
    wanted = top_k * _checked(share, top_k)
    some = np.flatnonzero(wanted)
    weights = np.zeros_like(wanted)
    if some.size <= top_k:  # those that any token has, every token has
        weights[some] = 1.0
        return weights
    rate = -np.log1p(-np.minimum(wanted[some], 1 - MISSES))
    fitted = rate
    for _ in range(ROUNDS):
        step = rate / -np.log1p(-inclusion(fitted, top_k))
        fitted = fitted * step
        if np.abs(np.log(step)).max() < PRECISION:
            break
    weights[some] = fitted / fitted.max()
    return weights


def inclusion(weights: np.ndarray, top_k: int) -> np.ndarray:
    """π [E], the chance of each expert to be among the ``top_k`` drawn, for positive ``weights`` [E]; k below E."""
    early, late = _window(weights, top_k)
    span = float(np.log(late / early))
    nodes, measure = np.polynomial.legendre.leggauss(max(POINTS, int(POINTS_A_FOLD * span)))
    time = early * np.exp(span * (nodes + 1) / 2)  # [X]
    hazard = weights * time[:, None]  # [X, E]
    density = hazard * np.exp(-hazard) * (measure * span / 2)[:, None]
    # Before the window nobody is late: whoever arrives there is in.
    return -np.expm1(-weights * early) + (density * _fewer_others(-np.expm1(-hazard), top_k)).sum(axis=0)


def _window(weights: np.ndarray, top_k: int) -> tuple[float, float]:
    """Times before which k or more, and after which fewer than k, have arrived with a chance of about 1e-7 at most."""

    def when(expected: float) -> float:
        """The time by which ``expected`` experts have arrived on average (bisection over the logarithm)."""
        low, high = np.log(1e-12 / weights.max()), np.log(50.0 / weights.min())
        for _ in range(60):
            middle = (low + high) / 2
            if -np.expm1(-weights * np.exp(middle)).sum() < expected:
                low = middle
            else:
                high = middle
        return float(np.exp(high))

    # Chernoff's bounds for a Poisson number: exp(k − μ) · (μ/k)^k, on either side of k.
    mean = top_k * np.exp(-np.arange(0, 20, 0.05))
    few = mean[np.argmax(top_k - mean + top_k * np.log(mean / top_k) < -16)]
    mean = top_k * np.exp(np.arange(0, 5, 0.02))
    many = mean[np.argmax(top_k - mean + top_k * np.log(mean / top_k) < -16)]
    return when(few), when(min(many, weights.size - 1e-9))


def _fewer_others(arrived: np.ndarray, top_k: int) -> np.ndarray:
    """P(fewer than k of the others have arrived) [X, E], where each has with probability ``arrived`` [X, E].

    Leaving one out of a sum of Bernoullis, for every one: halve the experts again and again, and add to either half's
    count the experts of the other half. The last halves are single experts, with all others counted. Counts of k and
    more are let go.
    """
    points, num_experts = arrived.shape
    size = 1 << (num_experts - 1).bit_length()
    arrived = np.pad(arrived, ((0, 0), (0, size - num_experts)))  # those that never arrive change nothing
    count = np.zeros((1, points, top_k))
    count[:, :, 0] = 1.0
    while size > 1:
        size //= 2
        halves = arrived.T.reshape(-1, 2, size, points)
        others = halves[:, ::-1].reshape(-1, size, points)
        count = count.repeat(2, axis=0)  # [halves, X, k]
        for chance in np.moveaxis(others, 1, 0)[..., None]:
            more = count[:, :, :-1] * chance
            count *= 1 - chance
            count[:, :, 1:] += more
    return count.sum(axis=2).T[:, :num_experts]


def _checked(share: np.ndarray, top_k: int) -> np.ndarray:
    """``share`` summing to exactly 1."""
    if share.ndim != 1 or not share.size:
        raise ValueError(f"popularity: has the shape {list(share.shape)}; it must be [experts]")
    if not 1 <= top_k <= share.size:
        raise ValueError(f"top_k: {top_k} is not between 1 and the {share.size} experts")
    if not (np.isfinite(share).all() and (share >= 0).all()):
        expert = int(np.flatnonzero(~(np.isfinite(share) & (share >= 0)))[0])
        raise ValueError(f"popularity: expert {expert} has {share[expert]}; a share is a number from 0 to 1")
    total = share.sum()
    if abs(total - 1) > 1e-3:
        raise ValueError(f"popularity: the shares sum to {total:.6g}; they must sum to 1")
    share = share / total
    if share.max() > (1 + 1e-6) / top_k:
        hottest = int(share.argmax())
        raise ValueError(
            f"popularity: expert {hottest} has {share[hottest]:.4f} of the assignments; with top_k {top_k} an expert "
            f"can't have more than 1/{top_k}, once in every token"
        )
    return share
