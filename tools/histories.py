"""Simulated nightly histories with the noise of real ones, to judge the detection of change points by. Seeded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from webapp.history.detection import ChangePoint, change_points, confirmed, is_same_step

NIGHTS, FIRST_LOOK = 180, 10
NOISE, OUTLIERS, DRIFT, MACHINES = 0.03, 0.02, 0.03, 0.005


def history(seed: int, nights: int = NIGHTS, steps: Mapping[int, float] | None = None) -> np.ndarray:
    """``nights`` times around 100, each step of ``steps`` multiplying all from its night on.

    Log-normal noise of 3%; 2% of the nights are 20 to 100% slower; a drift of 3% in all, up or down; about every 60
    nights another machine of the class takes over, whose level differs by half a percent or so.
    """
    random = np.random.default_rng(seed)
    logs = random.normal(0, NOISE, nights) + DRIFT * random.choice([-1, 1]) * np.linspace(0, 1, nights)
    logs += np.where(random.random(nights) < OUTLIERS, np.log(random.uniform(1.2, 2, nights)), 0)
    turns = np.cumsum(random.random(nights) < 1 / 60)
    logs += random.normal(0, MACHINES, turns[-1] + 1)[turns]
    for night, ratio in (steps or {}).items():
        logs[night:] += np.log(ratio)
    return 100 * np.exp(logs)


def regressions_told(values: np.ndarray, first: int = FIRST_LOOK) -> list[ChangePoint]:
    """What a product that looks every night from night ``first`` on would tell: confirmed regressions, each once."""
    earlier = change_points(values[: first - 1])
    known, told = list(earlier), []
    for night in range(first, len(values) + 1):
        tonight = change_points(values[:night])
        for point in confirmed(values[:night], tonight, earlier):
            if not any(is_same_step(point, other) for other in known):
                known.append(point)
                told += [point] if point.ratio > 1 else []
        earlier = tonight
    return told


def found_share(seeds: Iterable[int], ratio: float, within: int) -> float:
    """The share of histories in which a step is told, at its place, within so many nights."""
    found = []
    for seed in seeds:
        at = 100 + seed % 60
        values = history(seed, steps={at: ratio})[: at + within]
        found.append(any(is_same_step(point, ChangePoint(at, ratio, 0)) for point in regressions_told(values, at)))
    return float(np.mean(found))


def false_alerts(seeds: Iterable[int]) -> tuple[int, int]:
    """What is told of histories in which nothing happens, and the nights looked at."""
    told = [len(regressions_told(history(seed))) for seed in seeds]
    return sum(told), len(told) * (NIGHTS - FIRST_LOOK + 1)


def two_points_share(seeds: Iterable[int]) -> float:
    """The share of histories with a step of 10% and its reversal that have two change points there, and no third."""
    right = []
    for seed in seeds:
        up, down = 80, 95 + seed % 40
        found = change_points(history(seed, steps={up: 1.1, down: 1 / 1.1}))
        right.append(sum(up - 10 <= point.index <= down + 10 for point in found) == 2)
    return float(np.mean(right))
