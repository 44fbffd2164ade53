"""Statistics over samples. Pure.

A comparison works on ln(contender / base), ``x`` [S], in the order in which it was measured. Its middle is the median,
because step times have heavy tails. The standard error of that median comes from a block bootstrap, because successive
steps are alike; the interval and the p-value take Student's t with as many degrees of freedom as there are blocks, less
one. docs/comparison.md says how often that is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, log, log1p, sqrt

import numpy as np
from scipy.special import stdtr, stdtrit

from bench_worker.average_ranks import average_ranks
from bench_worker.findings import Change, Comparison
from bench_worker.result import Distribution

__all__ = [
    "BETWEEN_RUNS", "LEAST_EFFECT", "MIN_SAMPLES", "SIGNIFICANCE", "compare_paired", "compare_unpaired",
    "distribution", "geometric_mean", "holm", "whole_rotations",
]  # fmt: skip

#: Fewer pairs, or fewer values on a side, say nothing.
MIN_SAMPLES = 20
#: A ratio nearer to 1 is no change, however sure it is.
LEAST_EFFECT = 0.01
#: Largest p-value of a change: three standard errors of a normal distribution. Pages show many comparisons.
SIGNIFICANCE = 0.0027
#: Standard deviation of ln(time) between runs of the same on the same machine at different times, beyond what their
#: steps tell.
BETWEEN_RUNS = 0.02
#: Resamples of a bootstrap: its standard error is within 3% of what infinitely many give.
RESAMPLES = 500
#: Values that are resampled at once, to bound memory.
AT_ONCE = 2_000_000

Values = Sequence[float] | np.ndarray


def distribution(values: Values) -> Distribution | None:
    """Percentiles of ``values`` by linear interpolation between order statistics (numpy's default), and their mean.

    None without values. The unit is that of the values.
    """
    samples = np.asarray(values, float)
    if not samples.size:
        return None
    p50, p90, p95, p99 = np.percentile(samples, [50, 90, 95, 99]).tolist()
    return Distribution(p50=p50, p90=p90, p95=p95, p99=p99, mean=float(samples.mean()), samples=samples.size)


def whole_rotations(index: Sequence[int] | np.ndarray, variants: int) -> np.ndarray:
    """Which steps [S] belong to whole rotations of the ``variants`` that were measured interleaved.

    ``index`` [S]: each step's place in the schedule; it starts again with every pass, and so does the order of the
    variants. In a whole rotation each variant ran first once, and found the caches that the others left as often.
    """
    places = np.asarray(index)
    kept = np.ones(places.size, bool)
    for steps in np.split(np.arange(places.size), np.flatnonzero(np.diff(places) <= 0) + 1):
        kept[steps[steps.size - steps.size % variants :]] = False
    return kept


def compare_paired(base: Values, contender: Values, *, least_effect: float = LEAST_EFFECT, seed: int = 0) -> Comparison:
    """Times [S] of two variants that ran the same steps interleaved: the median of their ratios, step by step.

    Pass whole rotations (`whole_rotations`). Raises `ValueError` for times of different number, and for any that is not
    above 0.
    """
    ours, theirs = _logs("base", base), _logs("contender", contender)
    if ours.size != theirs.size:
        raise ValueError(f"base has {ours.size:,} times and contender {theirs.size:,}; pairs need as many of both")
    ratios = theirs - ours
    middle = float(np.median(ratios))
    if ratios.size < MIN_SAMPLES:
        return Comparison(ratio=exp(middle), samples=ratios.size, verdict="not enough samples")
    return _comparison(middle, *_median_error(ratios, seed), ratios.size, True, least_effect)


def compare_unpaired(
    base: Values, contender: Values, *, matched: bool = False, least_effect: float = LEAST_EFFECT, seed: int = 0
) -> Comparison:
    """Times [S] and [S'] of two runs at different times: the ratio of their medians or, where step i of both computed
    the same batch (``matched``), the median of their ratios.

    Drift of the machine doesn't cancel, so `BETWEEN_RUNS` of each run adds to the error. Raises `ValueError` as
    `compare_paired` does.
    """
    if matched:
        found = compare_paired(base, contender, seed=seed)
        middle, samples = log(found.ratio), found.samples
        parts = [(found.standard_error or 0.0, found.degrees or 1.0)]
    else:
        ours, theirs = _logs("base", base), _logs("contender", contender)
        middle, samples = float(np.median(theirs) - np.median(ours)), min(ours.size, theirs.size)
        parts = [_median_error(side, seed + place) for place, side in enumerate((ours, theirs))]
    if samples < MIN_SAMPLES:
        return Comparison(ratio=exp(middle), samples=samples, verdict="not enough samples", paired=False)
    error, degrees = _sum_of_errors([*parts, (sqrt(2) * BETWEEN_RUNS, np.inf)])
    return _comparison(middle, error, degrees, samples, False, least_effect)


def holm(comparisons: Sequence[Comparison], *, least_effect: float = LEAST_EFFECT) -> list[Comparison]:
    """``comparisons`` with p-values and verdicts corrected for their number (Holm 1979). Those without enough samples
    stay as they are and count for nothing; intervals stay those of each by itself."""
    places = [place for place, one in enumerate(comparisons) if one.p_value is not None]
    places.sort(key=lambda place: comparisons[place].p_value or 0.0)
    corrected, largest = list(comparisons), 0.0
    for rank, place in enumerate(places):
        one = comparisons[place]
        largest = max(largest, min(1.0, (len(places) - rank) * (one.p_value or 0.0)))
        verdict = _verdict(log(one.ratio), largest, least_effect)
        corrected[place] = one.model_copy(update={"p_value": largest, "verdict": verdict, "family": len(places)})
    return corrected


def geometric_mean(comparisons: Sequence[Comparison], *, least_effect: float = LEAST_EFFECT) -> Comparison | None:
    """The geometric mean of the ratios of one contender under several conditions, which were measured one after the
    other, so that their errors are independent. ``samples`` are those of all. None without comparisons; one of them
    without enough samples leaves the mean without, too."""
    if not comparisons:
        return None
    middle = float(np.mean([log(one.ratio) for one in comparisons]))
    samples, paired = sum(one.samples for one in comparisons), all(one.paired for one in comparisons)
    errors = [
        (one.standard_error / len(comparisons), one.degrees)
        for one in comparisons
        if one.standard_error is not None and one.degrees is not None
    ]
    if len(errors) < len(comparisons):
        return Comparison(ratio=exp(middle), samples=samples, verdict="not enough samples", paired=paired)
    return _comparison(middle, *_sum_of_errors(errors), samples, paired, least_effect)


def _comparison(
    middle: float, error: float, degrees: float, samples: int, paired: bool, least_effect: float
) -> Comparison:
    """Of ln ratio ``middle`` with its standard ``error``."""
    half = error * float(stdtrit(degrees, 0.975))
    score = abs(middle) / error if error else np.inf if middle else 0.0
    p_value = float(2 * stdtr(degrees, -score))
    return Comparison(
        ratio=exp(middle),
        ci95=(exp(middle - half), exp(middle + half)),
        p_value=p_value,
        samples=samples,
        verdict=_verdict(middle, p_value, least_effect),
        paired=paired,
        standard_error=error,
        degrees=degrees,
    )


def _verdict(middle: float, p_value: float, least_effect: float) -> Change:
    if p_value > SIGNIFICANCE or abs(middle) < log1p(least_effect):
        return "no significant change"
    return "slower" if middle > 0 else "faster"


def _logs(side: str, times: Values) -> np.ndarray:
    values = np.asarray(times, float)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"{side} has no times; it must be a list of at least one")
    if not np.all((values > 0) & np.isfinite(values)):
        worst = values[~((values > 0) & np.isfinite(values))][0]
        raise ValueError(f"{side} holds {worst:g}; times must be above 0 and finite")
    return np.log(values)


def _median_error(samples: np.ndarray, seed: int) -> tuple[float, float]:
    """Standard error of the median of ``samples`` [S] in their order, and its degrees of freedom.

    Circular block bootstrap (Politis and Romano 1992). Whole blocks vary less than the process by 1 − l / S, which is
    put back.
    """
    size, block = samples.size, _block(samples)
    blocks, middle = ceil(size / block), slice((size - 1) // 2, size // 2 + 1)
    circle = np.concatenate([samples, samples[:block]])
    rng = np.random.default_rng(seed)
    medians: list[np.ndarray] = []
    at_once = max(1, AT_ONCE // (blocks * block))
    for start in range(0, RESAMPLES, at_once):
        firsts = rng.integers(0, size, (min(at_once, RESAMPLES - start), blocks, 1), np.int32)
        places = (firsts + np.arange(block, dtype=np.int32)).reshape(len(firsts), -1)[:, :size]
        medians.append(np.sort(circle[places], axis=1)[:, middle].mean(axis=1))
    error = float(np.concatenate(medians).std(ddof=1)) / sqrt(1 - (block - 1) / size)
    return error, size / block - 1


def _block(samples: np.ndarray) -> int:
    """Length of the blocks that are resampled: (√6 · r / (1 − r²))^⅔ · S^⅓ for lag-1 autocorrelation r (Carlstein
    1986). Here it is that of the ranks, since heavy tails hide it, with its bias (1 + 3r) / S put back (Kendall 1954).
    At most a quarter of the samples."""
    ranks = average_ranks(samples) - (samples.size + 1) / 2
    power = float(ranks @ ranks)
    if power == 0:
        return 1
    r = float(ranks[1:] @ ranks[:-1]) / power
    r = min(max(r + (1 + 3 * r) / samples.size, 0.0), 0.95)
    return max(1, min(ceil((sqrt(6) * r / (1 - r * r)) ** (2 / 3) * samples.size ** (1 / 3)), samples.size // 4))


def _sum_of_errors(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Standard error of a sum of independent ``parts`` (standard error, degrees of freedom), and its degrees of freedom
    (Satterthwaite 1946)."""
    variances = [error**2 for error, _ in parts]
    total = sum(variances)
    if not total:
        return 0.0, min(degrees for _, degrees in parts)
    spread = sum(own**2 / degrees for own, (_, degrees) in zip(variances, parts, strict=True))
    return sqrt(total), total**2 / spread if spread else max(degrees for _, degrees in parts)
