"""Statistics over samples. Pure.

A comparison works on ln(contender / base), ``x`` [S], in the order in which it was measured. Its middle is the median,
because step times have heavy tails: the median of each turn, and the mean of these, because whoever does not run first
finds the caches that another left. The standard error of that middle comes from a block bootstrap, because successive
steps are alike; the interval and the p-value take Student's t with as many degrees of freedom as there are blocks, less
one. docs/comparison.md says how often that is right.

``V`` variants took turns in ``K`` whole rotations: S = V · K.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, log, log1p, sqrt

import numpy as np

from bench_worker.average_ranks import average_ranks
from bench_worker.findings import Change, Comparison
from bench_worker.result import Distribution

__all__ = [
    "BETWEEN_RUNS", "BETWEEN_WINDOWS", "LEAST_EFFECT", "MIN_ROTATIONS", "MIN_SAMPLES", "SIGNIFICANCE",
    "compare_paired", "compare_unpaired", "distribution", "geometric_mean", "holm", "middle",
]  # fmt: skip

#: Fewer pairs say nothing.
MIN_SAMPLES = 20
#: With fewer whole rotations, a turn has too few steps for a median of its own: that of all pairs is taken. Enough for
#: every comparison of two that took turns alone; and of many variants, the two in question run first in few steps.
MIN_ROTATIONS = MIN_SAMPLES // 2
#: A ratio nearer to 1 is no change, however sure it is.
LEAST_EFFECT = 0.01
#: Largest p-value of a change: three standard errors of a normal distribution. Pages show many comparisons.
SIGNIFICANCE = 0.0027
#: Standard deviation of ln ratio between variants that are equal, beyond what their steps tell: differences that last
#: for one window of measurement, some 200 steps, and are others in the next. Of 400 such windows on a 2-core EPYC.
BETWEEN_WINDOWS = 0.004
#: Standard deviation of ln(time) between runs of the same on the same machine at different times, beyond what their
#: steps tell.
BETWEEN_RUNS = 0.02
#: Resamples of a bootstrap: its standard error is within 3% of what infinitely many give.
RESAMPLES = 500
#: Values that are resampled at once, to bound memory.
AT_ONCE = 2_000_000

Values = Sequence[float] | np.ndarray
Turns = Sequence[int] | np.ndarray


def distribution(values: Values) -> Distribution | None:
    """Percentiles of ``values`` by linear interpolation between order statistics (numpy's default), and their mean.

    None without values. The unit is that of the values.
    """
    samples = np.asarray(values, float)
    if not samples.size:
        return None
    p50, p90, p95, p99 = np.percentile(samples, [50, 90, 95, 99]).tolist()
    return Distribution(p50=p50, p90=p90, p95=p95, p99=p99, mean=float(samples.mean()), samples=samples.size)


def middle(values: Values, turn: Turns | None = None) -> float:
    """The mean over the turns of the median of each turn's ``values`` [S]. Without turns, and with fewer than
    `MIN_ROTATIONS` rotations, the median of all.

    ``turn`` [S]: which variant ran first (`bench_worker.rotation.turns`), of whole rotations. Raises `ValueError` for
    turns that aren't.
    """
    samples = np.asarray(values, float)
    return _middle(samples, _by_turn(samples.size, turn))


def compare_paired(base: Values, contender: Values, turn: Turns | None = None) -> Comparison:
    """Times [S] of two variants that ran the same steps interleaved: the `middle` of their ratios, step by step.

    ``turn`` [S] as `middle` takes it; None of what took no turns, as requests. `BETWEEN_WINDOWS` adds to the error.
    Raises `ValueError` as `middle` does, for times of different number, and for any that is not above 0.
    """
    return _compared(_log_ratios(base, contender), turn, BETWEEN_WINDOWS, paired=True)


def compare_unpaired(base: Values, contender: Values) -> Comparison:
    """Times [S] of two runs at different times whose steps computed the same batches: the median of their ratios.

    Drift of the machine doesn't cancel, so `BETWEEN_RUNS` of each run adds to the error. Raises `ValueError` as
    `compare_paired` does.
    """
    return _compared(_log_ratios(base, contender), None, sqrt(2) * BETWEEN_RUNS, paired=False)


def holm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """``comparisons`` with p-values and verdicts corrected for their number (Holm 1979). Those without enough samples
    stay as they are and count for nothing; intervals stay those of each by itself."""
    places = [place for place, one in enumerate(comparisons) if one.p_value is not None]
    places.sort(key=lambda place: comparisons[place].p_value or 0.0)
    corrected, largest = list(comparisons), 0.0
    for rank, place in enumerate(places):
        one = comparisons[place]
        largest = max(largest, min(1.0, (len(places) - rank) * (one.p_value or 0.0)))
        verdict = _verdict(log(one.ratio), largest)
        corrected[place] = one.model_copy(update={"p_value": largest, "verdict": verdict, "family": len(places)})
    return corrected


def geometric_mean(comparisons: Sequence[Comparison]) -> Comparison | None:
    """The geometric mean of the ratios of one contender under several conditions, which were measured one after the
    other, so that their errors are independent. ``samples`` are those of all. None without comparisons; one of them
    without enough samples leaves the mean without, too."""
    if not comparisons:
        return None
    log_ratio = float(np.mean([log(one.ratio) for one in comparisons]))
    samples, paired = sum(one.samples for one in comparisons), all(one.paired for one in comparisons)
    errors = [
        (one.standard_error / len(comparisons), one.degrees)
        for one in comparisons
        if one.standard_error is not None and one.degrees is not None
    ]
    if len(errors) < len(comparisons):
        return Comparison(ratio=exp(log_ratio), samples=samples, verdict="not enough samples", paired=paired)
    return _comparison(log_ratio, *_sum_of_errors(errors), samples, paired)


def _compared(ratios: np.ndarray, turn: Turns | None, between: float, *, paired: bool) -> Comparison:
    """Of ln ratios [S]; ``between``: a standard deviation that steps can't tell."""
    places = _by_turn(ratios.size, turn)
    log_ratio = _middle(ratios, places)
    if ratios.size < MIN_SAMPLES:
        return Comparison(ratio=exp(log_ratio), samples=ratios.size, verdict="not enough samples", paired=paired)
    error, degrees = _sum_of_errors([_middle_error(ratios, places), (between, np.inf)])
    return _comparison(log_ratio, error, degrees, ratios.size, paired)


def _comparison(log_ratio: float, error: float, degrees: float, samples: int, paired: bool) -> Comparison:
    """Of ``log_ratio`` with its standard ``error``."""
    from scipy.special import stdtr, stdtrit  # here: a fifth of the start of a web process, which needs it late

    half = error * float(stdtrit(degrees, 0.975))
    score = abs(log_ratio) / error if error else np.inf if log_ratio else 0.0
    p_value = float(2 * stdtr(degrees, -score))
    return Comparison(
        ratio=exp(log_ratio),
        ci95=(exp(log_ratio - half), exp(log_ratio + half)),
        p_value=p_value,
        samples=samples,
        verdict=_verdict(log_ratio, p_value),
        paired=paired,
        standard_error=error,
        degrees=degrees,
    )


def _verdict(log_ratio: float, p_value: float) -> Change:
    if p_value > SIGNIFICANCE or abs(log_ratio) < log1p(LEAST_EFFECT):
        return "no significant change"
    return "slower" if log_ratio > 0 else "faster"


def _log_ratios(base: Values, contender: Values) -> np.ndarray:
    ours, theirs = _logs("base", base), _logs("contender", contender)
    if ours.size != theirs.size:
        raise ValueError(f"base has {ours.size:,} times and contender {theirs.size:,}; pairs need as many of both")
    return theirs - ours


def _logs(side: str, times: Values) -> np.ndarray:
    values = np.asarray(times, float)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"{side} has no times; it must be a list of at least one")
    if not np.all((values > 0) & np.isfinite(values)):
        worst = values[~((values > 0) & np.isfinite(values))][0]
        raise ValueError(f"{side} holds {worst:g}; times must be above 0 and finite")
    return np.log(values)


def _by_turn(size: int, turn: Turns | None) -> np.ndarray:
    """Places [V, K] of the steps of each turn, in the order of the rotations; [1, size] where turns don't count."""
    together = np.arange(size)[None]
    if turn is None:
        return together
    first = np.asarray(turn)
    if first.shape != (size,):
        raise ValueError(f"turn has {first.size:,} entries for {size:,} pairs; there must be one for each")
    variants = np.unique(first)
    if size % variants.size or np.any(np.sort(first.reshape(-1, variants.size)) != variants):
        raise ValueError("turn is not of whole rotations; in each, every variant must run first once")
    if size < MIN_ROTATIONS * variants.size:
        return together
    return np.argsort(first, kind="stable").reshape(variants.size, -1)


def _middle(values: np.ndarray, places: np.ndarray) -> float:
    return float(np.median(values[places], axis=1).mean())


def _middle_error(values: np.ndarray, places: np.ndarray) -> tuple[float, float]:
    """Standard error of the middle of ``values`` [S] in their order, and its degrees of freedom; ``places`` [V, K].

    Circular block bootstrap (Politis and Romano 1992) of whole rotations. Whole blocks vary less than the process by
    1 − l / K, which is put back.
    """
    by_turn = values[places]
    variants, rotations = places.shape
    alike = np.empty_like(values)
    alike[places] = by_turn - np.median(by_turn, axis=1, keepdims=True)
    block = ceil(_block(alike) / variants)
    blocks, half = ceil(rotations / block), slice((rotations - 1) // 2, rotations // 2 + 1)
    circle = np.concatenate([by_turn, by_turn[:, :block]], axis=1)
    rng = np.random.default_rng(0)
    middles: list[np.ndarray] = []
    at_once = max(1, AT_ONCE // (variants * blocks * block))
    for start in range(0, RESAMPLES, at_once):
        firsts = rng.integers(0, rotations, (min(at_once, RESAMPLES - start), blocks, 1), np.int32)
        drawn = (firsts + np.arange(block, dtype=np.int32)).reshape(len(firsts), -1)[:, :rotations]
        middles.append(np.sort(circle[:, drawn])[..., half].mean(axis=(0, 2)))
    error = float(np.concatenate(middles).std(ddof=1)) / sqrt(1 - (block - 1) / rotations)
    return error, rotations / block - 1


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
