"""Change points: by hand, against a slow version, and on simulated histories (`make bench ARGS=history` has more)."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from tools import histories
from webapp.history import detection
from webapp.history.detection import ChangePoint, Opinion, change_points, confirmed, opinion, suspected

STEADY = [100.0, 102.0, 99.0, 101.0, 100.5] * 6


def scaled(ratio: float, nights: int) -> list[float]:
    return [ratio * value for value in STEADY[:nights]]


def test_a_step_is_told_with_its_night_and_size() -> None:
    [point] = change_points(STEADY + scaled(1.2, 10))
    assert point.index == 30
    assert point.ratio == pytest.approx(1.2, rel=0.005)
    assert point.p_value < 1e-10


def test_its_certainty_is_that_of_students_test_on_the_logarithms() -> None:
    values = STEADY + scaled(1.06, 10)
    [point] = change_points(values)
    logs = detection._without_outliers(np.log(values))
    assert point.p_value == pytest.approx(stats.ttest_ind(logs[:30], logs[30:]).pvalue)


def test_values_that_shrink_have_a_ratio_below_one() -> None:
    [point] = change_points(STEADY + scaled(0.8, 10))
    assert point.ratio == pytest.approx(0.8, rel=0.005)


def test_constant_levels_are_told_apart_with_certainty() -> None:
    assert change_points([5.0] * 20) == []
    [point] = change_points([5.0] * 20 + [6.0] * 20)
    assert (point.index, point.p_value) == (20, 0)
    assert point.ratio == pytest.approx(1.2)


@pytest.mark.parametrize("nights", range(2 * detection.SHORTEST))
def test_too_few_nights_have_none(nights: int) -> None:
    assert change_points([100.0, 200.0][:nights] * 4) == []


def test_a_single_night_far_off_is_no_step() -> None:
    assert change_points([*STEADY, 300.0, *STEADY]) == []


def test_a_step_too_small_to_matter_is_not_told() -> None:
    assert change_points(STEADY + scaled(1.02, 30)) == []


def test_a_slow_drift_is_no_step() -> None:
    assert change_points([value * (1 + night / 2000) for night, value in enumerate(STEADY * 6)]) == []


def test_a_step_and_its_reversal_are_two() -> None:
    found = change_points(STEADY + scaled(1.15, 12) + STEADY)
    assert [point.index for point in found] == [30, 42]
    assert [point.ratio > 1 for point in found] == [True, False]


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_a_value_that_is_no_measurement_is_named(wrong: float) -> None:
    with pytest.raises(ValueError, match=rf"^values\[2\] is {wrong}; every value must be a finite number above 0$"):
        change_points([1.0, 2.0, wrong])


@pytest.mark.parametrize(
    ("last", "earlier", "told"),
    [
        (121.0, ChangePoint(30, 1.2, 0), [30]),
        (121.0, ChangePoint(33, 1.3, 0), [30]),  # a night earlier it looked a little different
        (101.0, ChangePoint(30, 1.2, 0), []),  # back to the old level
        (121.0, ChangePoint(10, 1.2, 0), []),  # another step
        (121.0, ChangePoint(30, 0.9, 0), []),  # the other direction
    ],
)
def test_a_second_night_confirms_or_does_not(last: float, earlier: ChangePoint, told: list[int]) -> None:
    values = [*STEADY, *scaled(1.2, 6), last]
    assert [point.index for point in confirmed(values, change_points(values), [earlier])] == told


def test_what_a_rerun_doubted_the_next_night_does_not_confirm() -> None:
    values, doubted = [*STEADY, *scaled(1.2, 6), 121.0], [ChangePoint(31, 1.15, 0)]
    assert confirmed(values, change_points(values), doubted)
    assert not confirmed(values, change_points(values), doubted, doubted)


def test_only_a_slower_level_that_is_in_force_and_not_confirmed_is_suspected() -> None:
    slower, faster = ChangePoint(30, 1.2, 0), ChangePoint(50, 0.9, 0)
    assert suspected([slower], []) == slower
    assert suspected([slower], [slower]) is None
    assert suspected([slower, faster], []) is None
    assert suspected([], []) is None


@pytest.mark.parametrize(
    ("again", "p_value", "word"),
    [
        (116.0, 1e-5, Opinion.CONFIRMS),  # levels of 110 and 121: half way, by ratio, lies √(110 · 121) = 115.4
        (115.0, 1e-5, Opinion.UNDECIDED),
        (116.0, 2e-5, Opinion.UNDECIDED),
        (110.1, 2e-5, Opinion.UNDECIDED),
        (109.9, 1e-9, Opinion.DOUBTS),
    ],
)
def test_a_rerun_confirms_what_is_sure_and_doubts_what_it_shows_no_trace_of(
    again: float, p_value: float, word: Opinion
) -> None:
    assert opinion([110.0] * 20 + [121.0] * 4, ChangePoint(20, 1.1, p_value), again) == word


def energy(before: np.ndarray, after: np.ndarray) -> float:
    """The scaled energy distance, term by term."""
    n, m = len(before), len(after)
    across = np.mean([abs(x - y) for x in before for y in after])
    within = [np.mean([abs(x - y) for x, y in combinations(side, 2)]) for side in (before, after)]
    return float(n * m / (n + m) * (2 * across - sum(within)))


@settings(max_examples=50, deadline=None)
@given(arrays(float, st.integers(8, 24), elements=st.floats(-5, 5)))
def test_the_best_split_is_that_of_the_slow_version(values: np.ndarray) -> None:
    slow = {at: energy(values[:at], values[at:]) for at in range(4, len(values) - 3)}
    assert slow[detection.best_split(values, 4)] == pytest.approx(max(slow.values()), abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(arrays(float, st.integers(0, 80), elements=st.floats(1, 2)), st.floats(1e-6, 1e6))
def test_neither_unit_nor_direction_matters(values: np.ndarray, unit: float) -> None:
    found = change_points(values)
    assert [point.index for point in change_points(values * unit)] == [point.index for point in found]
    assert all(point.ratio > 0 and 0 <= point.p_value <= detection.SURE for point in found)


@pytest.mark.parametrize(("ratio", "nights", "share"), [(1.08, 8, 0.95), (1.05, 12, 0.8)])
def test_a_step_is_told_soon(ratio: float, nights: int, share: float) -> None:
    assert histories.found_share(range(100), ratio, nights) >= share


def test_histories_in_which_nothing_happens_are_left_in_peace() -> None:
    alerts, nights = histories.false_alerts(range(1000, 1020))
    assert alerts <= nights / 1000


@pytest.mark.parametrize(("ratio", "nights", "share"), [(1.08, 8, 0.95), (1.05, 12, 0.8)])
def test_with_reruns_a_step_is_told_no_later(ratio: float, nights: int, share: float) -> None:
    assert histories.found_share(range(100), ratio, nights, rerun=True) >= share


@pytest.mark.parametrize("shared", [0.0, 0.5, 0.8])
def test_reruns_wake_nobody_more_often_however_much_of_the_nights_luck_they_share(shared: float) -> None:
    alerts, nights = histories.false_alerts(range(1000, 1020), rerun=True, shared=shared)
    assert alerts <= nights / 1000


def test_a_step_and_its_reversal_are_two_amid_noise() -> None:
    assert histories.two_points_share(range(100)) >= 0.95
