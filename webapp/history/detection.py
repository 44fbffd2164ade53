"""Where a series of nightly values changed its level. Pure.

The method is Hunter's (Fleming et al., "Hunter: Using Change Point Detection to Hunt for Performance Regressions",
ICPE 2023; now Apache Otava). E-divisive means (Matteson and James, "A Nonparametric Approach for Multiple Change Point
Analysis of Multivariate Data", JASA 2014) say where a window of nights is best split. Student's t-test instead of
permutations says whether to: generously at first, so that a step that is soon undone is not lost in the mean of what
follows. Then the least sure points are taken away one by one, each time judging its neighbours anew.

What differs from Hunter: values are compared by ratio (their logarithms are), single nights far off their neighbours
are pulled in first, and a point is judged by the nights near it, so that a slow drift never adds up to a step.

Shapes: ``N`` nights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

#: Nights that are split together, and at most so many on each side decide whether a point is one.
WINDOW, NEAR = 60, 30
#: A level lasts at least so many nights.
SHORTEST = 4
#: p-values: to consider a point, and to keep it.
MAYBE, SURE = 0.004, 5e-4
#: A re-run confirms by itself only what is as sure as this, for it shares the night's luck with the night.
SURE_AT_ONCE = 1e-5
#: Smaller steps are not told: machines of one class differ by as much.
SMALLEST_RATIO = 1.0375
#: Nights around one that tell what is usual then, and how many of their standard deviations a night may be off it.
NEIGHBOURS, FAR_OFF = 9, 1.8
#: The same step, found again a night later, may begin so many nights earlier or later.
SAME_STEP = 5

_MAD_TO_SIGMA = 1.4826  # of normal noise


@dataclass(frozen=True)
class ChangePoint:
    """``index``: of the first value of the new level; ``ratio``: new level / old level, above 1 where values grew."""

    index: int
    ratio: float
    p_value: float


def change_points(values: Sequence[float] | np.ndarray) -> list[ChangePoint]:
    """The changes of level in ``values`` [N], one for each night in order of time; of any unit, all above 0.

    Raises ValueError, naming the value, where one is not a finite number above 0.
    """
    logs = _without_outliers(np.log(_checked(values)))
    return _kept(logs, _considered(logs))


class Opinion(StrEnum):
    """What a re-run of the last night says of a suspicion."""

    CONFIRMS = "confirms"
    UNDECIDED = "undecided"
    DOUBTS = "doubts"  # the next night by itself must not confirm it


def confirmed(
    values: Sequence[float] | np.ndarray,
    tonight: Iterable[ChangePoint],
    earlier: Sequence[ChangePoint],
    doubted: Sequence[ChangePoint] = (),
) -> list[ChangePoint]:
    """Those of ``tonight``, the change points of ``values`` [N], that the last night bears out.

    ``earlier``: the change points without the last night, of which a re-run ``doubted`` some. A point is borne out if
    it was among the others, and if the last night, which had no part in that, is nearer to the new level than to the
    old one.
    """
    known = _checked(values)
    return [
        point
        for point in tonight
        if any(is_same_step(point, before) for before in earlier)
        and not any(is_same_step(point, before) for before in doubted)
        and _bears_out(known[:-1], point, known[-1])
    ]


def suspected(tonight: Sequence[ChangePoint], confirmed: Sequence[ChangePoint]) -> ChangePoint | None:
    """The level that is in force tonight, if it is a higher one and not ``confirmed``: what a re-run can ask about."""
    return tonight[-1] if tonight and tonight[-1].ratio > 1 and tonight[-1] not in confirmed else None


def opinion(values: Sequence[float] | np.ndarray, point: ChangePoint, again: float) -> Opinion:
    """What ``again``, the last of ``values`` [N] measured once more, says of ``point``, their last change point.

    It confirms a sure point if it is nearer to the new level than to the old one, and doubts one of which it shows no
    trace. Simulations set these limits so that re-runs cause no more false alerts than nights alone, however alike a
    night and its re-run are (`tools.histories`).
    """
    known = _checked([*values, again])[:-1]
    if point.p_value <= SURE_AT_ONCE and _bears_out(known, point, again):
        return Opinion.CONFIRMS
    old_level = float(np.median(known[point.index :])) / point.ratio
    return Opinion.DOUBTS if (again <= old_level) == (point.ratio > 1) else Opinion.UNDECIDED


def _bears_out(values: np.ndarray, point: ChangePoint, further: float) -> bool:
    """Whether a ``further`` value is nearer to the new level of ``values`` [N] than to the old one."""
    halfway = float(np.median(values[point.index :])) / math.sqrt(point.ratio)
    return bool(further > halfway) == (point.ratio > 1)


def is_same_step(one: ChangePoint, other: ChangePoint) -> bool:
    """Whether two looks at a growing series speak of one step."""
    return abs(one.index - other.index) <= SAME_STEP and (one.ratio > 1) == (other.ratio > 1)


def _checked(values: Sequence[float] | np.ndarray) -> np.ndarray:
    given = np.asarray(values, float)
    wrong = np.flatnonzero(~(np.isfinite(given) & (given > 0)))
    if wrong.size:
        raise ValueError(f"values[{wrong[0]}] is {given[wrong[0]]}; every value must be a finite number above 0")
    return given


def _without_outliers(logs: np.ndarray) -> np.ndarray:
    """Hampel's filter [N] -> [N]: no night stays farther from its neighbours' median than `FAR_OFF` of the series' own
    standard deviations. The first night of a new level is pulled in as well, until the nights after it bear it out."""
    if logs.size < NEIGHBOURS:
        return logs
    half = NEIGHBOURS // 2
    around = np.lib.stride_tricks.sliding_window_view(np.pad(logs, half, constant_values=np.nan), NEIGHBOURS)
    usual = np.nanmedian(around, axis=1)
    reach = FAR_OFF * _MAD_TO_SIGMA * np.median(np.abs(logs - usual))
    return np.clip(logs, usual - reach, usual + reach)


def _considered(logs: np.ndarray) -> list[int]:
    """Split window after window, overlapping by half, so that long ago doesn't weigh on what is new."""
    found: set[int] = set()
    start = 0
    while start < logs.size:
        inside = _split(logs, start, min(start + WINDOW, logs.size))
        found.update(inside)
        start = max([start + WINDOW // 2, *inside])
    return sorted(found)


def _split(logs: np.ndarray, start: int, end: int) -> list[int]:
    """E-divisive within ``logs[start:end]``, in order."""
    if end - start < 2 * SHORTEST:
        return []
    at = start + best_split(logs[start:end], SHORTEST)
    if _tested(logs, start, at, end).p_value > MAYBE:
        return []
    return [*_split(logs, start, at), at, *_split(logs, at, end)]


def best_split(values: np.ndarray, shortest: int) -> int:
    """Where to split ``values`` [N] so that the energy distance between both sides, scaled by their sizes, is largest.

    With ``n`` values X before and ``m`` values Y after it, that is n·m / (n + m) · (2 E|X − Y| − E|X − X'| − E|Y − Y'|)
    (Matteson and James 2014, equations 5 to 7 with α = 1).
    """
    distances = np.abs(values[:, None] - values)
    n = np.arange(shortest, values.size - shortest + 1)
    m = values.size - n
    before = np.cumsum(np.tril(distances).sum(axis=1))  # within the first values, up to and with each
    after = np.cumsum(np.triu(distances).sum(axis=1)[::-1])  # within the last ones
    within_x, within_y = before[n - 1], after[m - 1]
    across = before[-1] - within_x - within_y
    energy = 2 * across / (n * m) - 2 * within_x / (n * (n - 1)) - 2 * within_y / (m * (m - 1))
    return int(n[np.argmax(n * m / (n + m) * energy)])


def _kept(logs: np.ndarray, considered: Sequence[int]) -> list[ChangePoint]:
    """Take away the least sure point, then the smallest, until every one is sure and large enough."""
    indexes = list(considered)
    while indexes:
        ends = [0, *indexes, logs.size]
        points = [_tested(logs, *ends[place : place + 3]) for place in range(len(indexes))]
        doubtful = max(points, key=lambda point: point.p_value)
        smallest = min(points, key=lambda point: abs(math.log(point.ratio)))
        if doubtful.p_value > SURE:
            indexes.remove(doubtful.index)
        elif abs(math.log(smallest.ratio)) < math.log(SMALLEST_RATIO):
            indexes.remove(smallest.index)
        else:
            return points
    return []


def _tested(logs: np.ndarray, start: int, at: int, end: int) -> ChangePoint:
    """Student's t-test of the levels before and after ``at``, by the nights near it."""
    from scipy.special import stdtr  # here: a fifth of a process's start, and only who analyses nights needs it

    before, after = logs[max(start, at - NEAR) : at], logs[at : min(end, at + NEAR)]
    step = float(after.mean() - before.mean())
    freedom = before.size + after.size - 2
    spread = (before.var() * before.size + after.var() * after.size) / freedom
    error = math.sqrt(spread * (1 / before.size + 1 / after.size))
    p_value = 2 * float(stdtr(freedom, -abs(step) / error)) if error else float(step == 0)
    return ChangePoint(at, math.exp(step), p_value)
