"""Histograms of a trace."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webapp.traces.models import RECORD
from webapp.traces.shape import MAX_SLOTS, arrivals, lengths, shape_of, slot_width


def test_lengths_fall_into_half_octaves_from_the_shortest_to_the_longest() -> None:
    found = lengths(np.array([5, 6, 7, 8, 10, 11, 17]))
    assert found == {"edges": [4, 6, 8, 11, 16, 23], "counts": [1, 2, 2, 1, 1]}


def test_one_length_is_one_bar() -> None:
    assert lengths(np.array([1])) == {"edges": [1, 2], "counts": [1]}
    assert lengths(np.array([3, 3])) == {"edges": [3, 4], "counts": [2]}


@given(st.lists(st.integers(1, 10_000_000), min_size=1))
def test_every_length_counts_in_the_bar_that_names_it(tokens: list[int]) -> None:
    found = lengths(np.array(tokens))
    edges = found["edges"]
    assert [sum(low <= length < high for length in tokens) for low, high in pairwise(edges)] == found["counts"]
    assert found["counts"][0] > 0
    assert found["counts"][-1] > 0


def test_arrivals_are_counted_from_the_first_one_in_slots_of_a_round_width() -> None:
    assert arrivals(np.array([5.0, 5.0, 7.5, 15.0])) == {"width_s": 0.2, "counts": [2, *[0] * 11, 1, *[0] * 37, 1]}


def test_requests_that_come_at_once_have_one_slot() -> None:
    assert arrivals(np.array([3.0, 3.0])) == {"width_s": 0.0, "counts": [2]}


@pytest.mark.parametrize(
    ("span_s", "width_s"),
    [(1e-5, 1e-6), (0.5, 0.01), (99.0, 1.0), (100.0, 2.0), (3_600.0, 60.0), (86_400.0, 900.0), (604_800.0, 7_200.0),
     (31_536_000.0, 345_600 * 1.0), (1e10, 86_400.0 * 2048)],
)  # fmt: skip
def test_slots_have_widths_that_a_reader_can_name(span_s: float, width_s: float) -> None:
    assert slot_width(span_s) == pytest.approx(width_s)


@given(st.lists(st.floats(0, 1e10), min_size=1))
def test_every_arrival_counts_once_in_at_most_so_many_slots(times: list[float]) -> None:
    found = arrivals(np.array(sorted(times)))
    assert sum(found["counts"]) == len(times)
    assert len(found["counts"]) <= MAX_SLOTS


def test_a_shape_has_both_lengths_and_the_arrivals() -> None:
    requests = np.array([(0.0, 100, 1), (1.0, 100, 2)], RECORD)
    assert shape_of(requests) == {
        "prompt": {"edges": [91, 128], "counts": [2]},
        "output": {"edges": [1, 2, 3], "counts": [1, 1]},
        "arrivals": {"width_s": 0.02, "counts": [1, *[0] * 49, 1]},
    }
