"""How often the comparison of two variants is right, on simulated times whose answer is known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.signal import lfilter

from bench_worker.stats import compare_paired

CASES, STEPS = 2000, 200
AUTOCORRELATIONS = (0.0, 0.1, 0.3, 0.6)
#: Robust standard deviation of the log ratio of a step, as measured between equal variants at small batches.
SPREAD = 0.039
#: The true ratios of the cases that test the intervals go round these.
RATIOS = (1.0, 1.03, 1 / 1.1, 2.0)


class Simulated(NamedTuple):
    """``coverage``: share of 95% intervals that hold the true ratio; ``false``: share of equal variants that were told
    apart; ``found``: share of those slower by 3% that were found slower."""

    coverage: float
    false: float
    found: float


def section() -> None:
    print(f"Comparisons of {STEPS} simulated steps, {CASES:,} cases a row, noise with heavy tails ({SPREAD:.1%})")
    print(f"{'autocorrelation':>15} {'intervals hold the truth':>25} {'A/A told apart':>15} {'3% slower found':>16}")
    for autocorrelation in AUTOCORRELATIONS:
        seen = simulated(autocorrelation)
        print(f"{autocorrelation:>15} {seen.coverage:>25.1%} {seen.false:>15.2%} {seen.found:>16.1%}")


def simulated(autocorrelation: float, steps: int = STEPS, cases: int = CASES) -> Simulated:
    """Both sides have the same steps of very different length; the log ratio has the noise."""
    rng = np.random.default_rng(0)
    coverage = false = found = 0
    for case in range(cases):
        base = rng.lognormal(8, 1, steps)
        equal = base * np.exp(SPREAD * autocorrelated(steps, autocorrelation, rng))
        truth = RATIOS[case % len(RATIOS)]
        low, high = compare_paired(base, truth * equal, seed=case).ci95 or (0, 0)
        coverage += low <= truth <= high
        false += compare_paired(base, equal, seed=case).verdict != "no significant change"
        found += compare_paired(base, 1.03 * equal, seed=case).verdict == "slower"
    return Simulated(coverage / cases, false / cases, found / cases)


def autocorrelated(count: int, autocorrelation: float, rng: np.random.Generator) -> np.ndarray:
    """Noise [count] of robust standard deviation 1: a first-order autoregression whose shocks are Student's t with 3
    degrees of freedom."""
    settled = 100
    noise = lfilter([1.0], [1.0, -autocorrelation], rng.standard_t(3, settled + count))
    scale = 1.4826 * np.median(np.abs(noise))
    return noise[settled:] / scale
