"""How steady a run was. Pure; torch-free. The rule stands in docs/measurement.md, in words.

Samples are positive ratios of a step's time to what steps like it take, in the order in which they were measured, so
that a machine that always takes the same gives ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np

from bench_worker.average_ranks import average_ranks
from bench_worker.result import Around, Noise, Probed, Rate, RateUnit

__all__ = [
    "AWAY",
    "DRIFT",
    "MIN_SAMPLES",
    "NOISY_SPREAD",
    "Seen",
    "around",
    "classify",
    "decides",
    "relative_to_like",
    "sentence",
    "two_rates",
    "warming_steps",
    "with_machine",
]

MIN_SAMPLES = 20
#: Robust standard deviation above which a run is noisy.
NOISY_SPREAD = 0.05
#: Change from the first quarter to the last above which a run with a trend drifts, and rank correlation of a trend.
DRIFT, TREND = 0.03, 0.5
#: Two modes lie so far apart (1 is equal), hold so much of the samples each, and are so cleanly separated: Ashman's D
#: (Ashman, Bird and Zepf 1994). One uniform block cut in half reaches 3.5, one normal distribution 2.7.
MODE_GAP, MODE_SHARE, MODE_SEPARATION = 0.05, 0.15, 4.0
#: A machine whose rates lie further than this from its ceilings, or move by more, is contended. The best of a
#: calibration's repeats lies about 5% above their median.
AWAY = 0.15
#: A run is judged by a rate of the machine where that sets at least this share of its time.
LEAST_SHARE = 0.2
#: Fewer rates than this don't fall into two.
MIN_RATES = 8


class Seen(NamedTuple):
    """Rates of the machine at one time: its memory bus in GB/s, and in GFLOP/s its matrix rate where that is probed."""

    memory: float
    matrix: float | None = None


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
    low, high, separation = _modes(samples)
    gap = float(np.expm1(high - low))
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


def around(seen: Sequence[Seen], usual: Seen, deciding: Rate | None) -> Around:
    """What the probes of a run saw, beside what is ``usual``: what their kernels reached when the machine was
    calibrated. ``deciding``: which of the two rates sets the time of the run, as `decides` says."""
    products = [one.matrix for one in seen if one.matrix is not None]
    return Around(
        probes=len(seen),
        memory=_probed([one.memory for one in seen], usual.memory, "GB/s"),
        matrix=_probed(products, usual.matrix, "GFLOP/s") if products and usual.matrix else None,
        decides=deciding,
    )


def decides(memory_us: float, compute_us: float, time_us: float) -> Rate | None:
    """Which rate of the machine sets the time of a run, of whose ``time_us`` its floors take so much for each."""
    if max(memory_us, compute_us) < LEAST_SHARE * time_us:
        return None
    return "memory" if memory_us >= compute_us else "matrix"


def with_machine(found: Noise, machine: Around) -> Noise:
    """``found`` with what the machine gave around the run. Where the steps themselves tell nothing against the run,
    its label becomes ``contended`` if the rate that decides lies `AWAY` from its ceiling, or moved by more."""
    probed = machine.deciding
    contended = probed is not None and (abs(probed.share - 1) > AWAY or probed.moved > AWAY)
    label = "contended" if contended and found.label in ("steady", "unknown") else found.label
    return found.model_copy(update={"around": machine, "label": label})


def sentence(found: Noise) -> str | None:
    """Why the times of a run don't compare with those of another time; None where its machine was as usual."""
    if found.around is None or (probed := found.around.deciding) is None:
        return None
    if abs(probed.share - 1) > AWAY:
        told = (
            f"The {probed.what} gave {_figure(probed.median)} {probed.unit} around this run, {probed.share:.0%} of "
            "what this machine was calibrated at"
        )
    elif probed.moved > AWAY:
        rates = f"{_figure(probed.lowest)} and {_figure(probed.best)} {probed.unit}"
        told = f"The {probed.what} moved between {rates} around this run"
    else:
        return None
    return f"{told}: its times don't compare with those of another time."


def two_rates(rates: Sequence[float]) -> tuple[float, float] | None:
    """The two rates that ``rates`` fall into, the lower one first, where they do and lie more than `AWAY` apart."""
    if len(rates) < MIN_RATES:
        return None
    low, high, separation = _modes(np.log(rates))
    is_two = np.expm1(high - low) > AWAY and separation >= MODE_SEPARATION
    return (float(np.exp(low)), float(np.exp(high))) if is_two else None


def _probed(rates: Sequence[float], ceiling: float, unit: RateUnit) -> Probed:
    low, median, high = np.quantile(rates, [0.25, 0.5, 0.75])
    return Probed(
        unit=unit,
        best=max(rates),
        median=float(median),
        lowest=min(rates),
        moved=float((high - low) / median),
        ceiling=ceiling,
    )


def _figure(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def _modes(samples: np.ndarray) -> tuple[float, float, float]:
    """The means of the best split in two (Otsu 1979) with at least `MODE_SHARE` on each side, and Ashman's D of it."""
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
    return float(one.mean()), float(two.mean()), separation
