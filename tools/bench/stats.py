"""How often the comparison of two variants is right, on simulated times whose answer is known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.signal import lfilter

from bench_worker.rotation import turns
from bench_worker.stats import compare_paired

CASES, STEPS = 2000, 200
AUTOCORRELATIONS = (0.0, 0.1, 0.3, 0.6)
#: Robust standard deviation of a step's log ratio within a turn, as measured between equal variants at small batches.
SPREAD = 0.039
#: What the second in a step gains, and the standard deviation of what a whole window differs by, measured likewise.
ORDER, WINDOW = 0.039, 0.004
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
    for order, window in ((0.0, 0.0), (ORDER, WINDOW)):
        print(f"\nwhoever runs second gains {order:.1%}; windows differ by {window:.1%}")
        print(
            f"{'autocorrelation':>15} {'intervals hold the truth':>25} {'A/A told apart':>15} {'3% slower found':>16}"
        )
        for autocorrelation in AUTOCORRELATIONS:
            seen = simulated(autocorrelation, order, window)
            print(f"{autocorrelation:>15} {seen.coverage:>25.1%} {seen.false:>15.2%} {seen.found:>16.1%}")


def simulated(autocorrelation: float, order: float, window: float, steps: int = STEPS, cases: int = CASES) -> Simulated:
    """Two variants that took turns. Both sides have the same steps of very different length; the log ratio has noise,
    ``order`` for whoever ran second, and its window's share of ``window``, a standard deviation."""
    rng = np.random.default_rng(0)
    turn = turns(np.arange(steps), 2)
    coverage = false = found = 0
    for case in range(cases):
        base = rng.lognormal(8, 1, steps)
        noise = SPREAD * autocorrelated(steps, autocorrelation, rng)
        equal = base * np.exp(noise + np.where(turn, order, -order) + rng.normal(0, window))
        truth = RATIOS[case % len(RATIOS)]
        low, high = compare_paired(base, truth * equal, turn).ci95 or (0, 0)
        coverage += low <= truth <= high
        false += compare_paired(base, equal, turn).verdict != "no significant change"
        found += compare_paired(base, 1.03 * equal, turn).verdict == "slower"
    return Simulated(coverage / cases, false / cases, found / cases)


def autocorrelated(count: int, autocorrelation: float, rng: np.random.Generator) -> np.ndarray:
    """Noise [count] of robust standard deviation 1: a first-order autoregression whose shocks are Student's t with 3
    degrees of freedom."""
    settled = 100
    noise = lfilter([1.0], [1.0, -autocorrelation], rng.standard_t(3, settled + count))
    scale = 1.4826 * np.median(np.abs(noise))
    return noise[settled:] / scale
