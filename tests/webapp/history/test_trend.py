"""A week against the one before, and where nights usually lie."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from webapp.history.trend import usual_range, week_change


def test_a_week_is_compared_with_the_one_before_by_ratio() -> None:
    """By hand: alternating 99 and 101 around each mean, so the logarithms' means differ by log 1.1."""
    before = [99.0, 101.0, 99.0, 101.0, 99.0, 101.0, 100.0]
    ratio, low, high = week_change([*[500.0] * 5, *before, *(1.1 * value for value in before)])
    assert ratio == pytest.approx(1.1)
    assert low * high == pytest.approx(1.1**2)
    assert 1.08 < low < 1.1 < high < 1.12


@given(st.lists(st.floats(50, 200), min_size=11, max_size=14))
def test_the_interval_is_that_of_welchs_test(values: list[float]) -> None:
    now, before = np.log(values[-7:]), np.log(values[:-7])
    assume(now.std() > 1e-3 and before.std() > 1e-3)
    expected = stats.ttest_ind(now, before, equal_var=False).confidence_interval(0.95)
    _, low, high = week_change(values)
    assert math.log(low) == pytest.approx(expected.low, abs=1e-9)
    assert math.log(high) == pytest.approx(expected.high, abs=1e-9)


def test_equal_nights_have_no_doubt_and_few_nights_no_answer() -> None:
    assert week_change([5.0] * 14) == pytest.approx([1.0, 1.0, 1.0])
    assert week_change([5.0] * 10) == []


def test_each_level_has_its_own_band() -> None:
    """By hand: levels 100 and 200, each with a median deviation of log 1.01, so the band is 1.01^(1.96 · 1.4826)."""
    level = [100.0, 101.0, 100 / 1.01]
    low, high = usual_range([*level, *(2 * value for value in level)], [3])
    reach = 1.01 ** (1.96 * 1.4826)
    assert low == pytest.approx([100 / reach] * 3 + [200 / reach] * 3)
    assert high == pytest.approx([100 * reach] * 3 + [200 * reach] * 3)
