"""How steady a run was. Pure; torch-free. The rule stands in docs/measurement.md, in words.

Samples are positive ratios of a step's time to what steps like it take, in the order in which they were measured, so
that a machine that always takes the same gives ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from bench_worker.average_ranks import average_ranks
from bench_worker.result import Noise

__all__ = ["DRIFT", "MIN_SAMPLES", "NOISY_SPREAD", "classify", "relative_to_like", "warming_steps"]

MIN_SAMPLES = 20
#: Robust standard deviation above which a run is noisy.
NOISY_SPREAD = 0.05
#: Change from the first quarter to the last above which a run with a trend drifts, and rank correlation of a trend.
DRIFT, TREND = 0.03, 0.5
#: Two modes lie so far apart (1 is equal), hold so much of the samples each, and are so cleanly separated: Ashman's D
#: (Ashman, Bird and Zepf 1994). One uniform block cut in half reaches 3.5, one normal distribution 2.7.
MODE_GAP, MODE_SHARE, MODE_SEPARATION = 0.05, 0.15, 4.0


def classify(ratios: Sequence[float] | np.ndarray) -> Noise:
    """The label of a run whose steps took ``ratios`` [S] of what is usual, with the figures behind it.

    Drifting: a trend (Spearman's rho) that moves the last quarter away from the first. Bimodal: two separate modes.
    Noisy: a large spread, 1.4826 · median absolute deviation of the log ratios. Else steady. Drifting comes first,
    since a step from one level to another has two modes as well.
    """
    samples = np.log(np.asarray(ratios, float))
    if samples.size < MIN_SAMPLES:
        return Noise(label="unknown", samples=samples.size)
    spread = 1.4826 * float(np.median(np.abs(samples - np.median(samples))))
    quarter = samples.size // 4
    drift = float(np.expm1(samples[-quarter:].mean() - samples[:quarter].mean()))
    rho = 0.0 if np.ptp(samples) == 0 else float(np.corrcoef(np.arange(samples.size), average_ranks(samples))[0, 1])
    gap, separation = _modes(samples)
    if abs(rho) >= TREND and abs(drift) >= DRIFT:
        label = "drifting"
    elif gap >= MODE_GAP and separation >= MODE_SEPARATION:
        label = "bimodal"
    elif spread > NOISY_SPREAD:
        label = "noisy"
    else:
        label = "steady"
    return Noise(label=label, samples=samples.size, spread=spread, drift=drift, mode_gap=gap)


def relative_to_like(times: Sequence[float] | np.ndarray, kinds: Sequence[int] | np.ndarray) -> np.ndarray:
    """Each time over the median of the times of its kind, in order; kinds with fewer than five times are left out."""
    values, labels = np.asarray(times, float), np.asarray(kinds)
    kept = np.zeros(values.size, bool)
    ratios = np.ones(values.size)
    for kind in np.unique(labels):
        own = labels == kind
        if own.sum() >= 5:
            kept |= own
            ratios[own] = values[own] / np.median(values[own])
    return ratios[kept]


def warming_steps(ratios: Sequence[float] | np.ndarray) -> int:
    """How many first samples were still warming up; 0 for a run that was steady from the start.

    MSER (White 1997): the cut in the first half that leaves the least standard error of the mean; taken only where what
    is cut off was slower by more than `DRIFT`.
    """
    samples = np.asarray(ratios, float)
    if samples.size < MIN_SAMPLES:
        return 0
    errors = [samples[cut:].var() / (samples.size - cut) for cut in range(samples.size // 2)]
    cut = int(np.argmin(errors))
    slower = cut > 0 and samples[:cut].mean() > (1 + DRIFT) * samples[cut:].mean()
    return cut if slower else 0


def _modes(samples: np.ndarray) -> tuple[float, float]:
    """Ratio − 1 between the means of the best split in two (Otsu 1979) with at least `MODE_SHARE` on each side, and
    Ashman's D of it."""
    ordered = np.sort(samples)
    n = ordered.size
    least = max(2, int(MODE_SHARE * n))
    below = np.arange(least, n - least + 1)
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    low, high = sums[below] / below, (sums[n] - sums[below]) / (n - below)
    split = int(below[np.argmax(below * (n - below) * (high - low) ** 2)])
    one, two = ordered[:split], ordered[split:]
    distance = float(two.mean() - one.mean())
    width = sqrt(one.var() + two.var())
    separation = sqrt(2) * distance / width if width > 0 else (float("inf") if distance > 0 else 0.0)
    return float(np.expm1(distance)), separation
