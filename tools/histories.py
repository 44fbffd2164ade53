"""Simulated nightly histories with the noise of real ones, to judge the detection of change points by. Seeded.

What a product tells is simulated with and without re-runs of the nights that it suspects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from webapp.history.detection import (
    ChangePoint,
    Opinion,
    change_points,
    confirmed,
    is_same_step,
    opinion,
    suspected,
)

NIGHTS, FIRST_LOOK = 180, 10
NOISE, OUTLIERS, DRIFT, MACHINES = 0.03, 0.02, 0.03, 0.005


#: How much of a night's luck its re-run shares: the correlation of their noise, and the chance that a disturbance that
#: made the night an outlier is still there.
SHARED = 0.5


def history(seed: int, nights: int = NIGHTS, steps: Mapping[int, float] | None = None) -> np.ndarray:
    """``nights`` times around 100, each step of ``steps`` multiplying all from its night on.

    Log-normal noise of 3%; 2% of the nights are 20 to 100% slower; a drift of 3% in all, up or down; about every 60
    nights another machine of the class takes over, whose level differs by half a percent or so.
    """
    level, noise, outliers = _parts(seed, nights, steps)
    return 100 * np.exp(level + noise + outliers)


def measured_again(
    seed: int, nights: int = NIGHTS, steps: Mapping[int, float] | None = None, shared: float = SHARED
) -> np.ndarray:
    """What a re-run of each night of the `history` of the same ``seed`` comes to. ``shared``: see `SHARED`."""
    level, noise, outliers = _parts(seed, nights, steps)
    random = np.random.default_rng([seed, 1])
    own = random.normal(0, NOISE, nights)
    stays = (outliers > 0) & (random.random(nights) < shared)
    again = shared * noise + np.sqrt(1 - shared**2) * own + np.where(stays, outliers, _outliers(random, nights))
    return 100 * np.exp(level + again)


def _parts(seed: int, nights: int, steps: Mapping[int, float] | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logarithms, each [nights]: of the level, of the noise and of the outliers."""
    random = np.random.default_rng(seed)
    noise = random.normal(0, NOISE, nights)
    level = DRIFT * random.choice([-1, 1]) * np.linspace(0, 1, nights)
    outliers = _outliers(random, nights)
    turns = np.cumsum(random.random(nights) < 1 / 60)
    level += random.normal(0, MACHINES, turns[-1] + 1)[turns]
    for night, ratio in (steps or {}).items():
        level[night:] += np.log(ratio)
    return level, noise, outliers


def _outliers(random: np.random.Generator, nights: int) -> np.ndarray:
    return np.where(random.random(nights) < OUTLIERS, np.log(random.uniform(1.2, 2, nights)), 0)


def regressions_told(values: np.ndarray, first: int = FIRST_LOOK, again: np.ndarray | None = None) -> list[ChangePoint]:
    """What a product that looks every night from night ``first`` on would tell: confirmed regressions, each once.
    ``again``: what re-runs of the nights come to, where suspicions are measured again."""
    earlier = change_points(values[: first - 1])
    known, told, doubted = list(earlier), [], list[ChangePoint]()
    for night in range(first, len(values) + 1):
        tonight = change_points(values[:night])
        sure = confirmed(values[:night], tonight, earlier, doubted)
        doubted = []
        suspicion = suspected(tonight, sure)
        if again is not None and suspicion is not None and not _is_among(suspicion, known):
            word = opinion(values[:night], suspicion, again[night - 1])
            sure += [suspicion] if word == Opinion.CONFIRMS else []
            doubted = [suspicion] if word == Opinion.DOUBTS else []
        for point in sure:
            if not _is_among(point, known):
                known.append(point)
                told += [point] if point.ratio > 1 else []
        earlier = tonight
    return told


def _is_among(point: ChangePoint, others: Sequence[ChangePoint]) -> bool:
    return any(is_same_step(point, other) for other in others)


def found_share(seeds: Iterable[int], ratio: float, within: int, rerun: bool = False) -> float:
    """The share of histories in which a step is told, at its place, within so many nights."""
    found = []
    for seed in seeds:
        at = 100 + seed % 60
        values = history(seed, steps={at: ratio})[: at + within]
        again = measured_again(seed, steps={at: ratio}) if rerun else None
        found.append(_is_among(ChangePoint(at, ratio, 0), regressions_told(values, at, again)))
    return float(np.mean(found))


def false_alerts(seeds: Iterable[int], rerun: bool = False, shared: float = SHARED) -> tuple[int, int]:
    """What is told of histories in which nothing happens, and the nights looked at."""
    told = [
        len(regressions_told(history(seed), again=measured_again(seed, shared=shared) if rerun else None))
        for seed in seeds
    ]
    return sum(told), len(told) * (NIGHTS - FIRST_LOOK + 1)


def two_points_share(seeds: Iterable[int]) -> float:
    """The share of histories with a step of 10% and its reversal that have two change points there, and no third."""
    right = []
    for seed in seeds:
        up, down = 80, 95 + seed % 40
        found = change_points(history(seed, steps={up: 1.1, down: 1 / 1.1}))
        right.append(sum(up - 10 <= point.index <= down + 10 for point in found) == 2)
    return float(np.mean(right))
