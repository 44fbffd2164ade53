"""Whose turn it is to run first."""

from collections import Counter

import numpy as np
import pytest

from bench_worker.rotation import WHOLE_CLOCK_EVERY, order, turns, whole_rotations


def test_the_variants_rotate_by_one_from_step_to_step():
    assert [order(step, 3) for step in range(3)] == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]


@pytest.mark.parametrize("variants", [1, 2, 3, 4, 5, 6, 7, 8, 9, 24])
def test_every_rotation_has_each_variant_first_once_and_so_have_the_sampled_steps(variants):
    first = [order(step, variants)[0] for step in range(2 * 8 * 9 * variants)]
    rotations = [first[start : start + variants] for start in range(0, len(first), variants)]
    assert all(sorted(rotation) == list(range(variants)) for rotation in rotations)
    sampled = Counter(first[::WHOLE_CLOCK_EVERY])
    assert len(sampled) == variants
    assert max(sampled.values()) - min(sampled.values()) <= 2


def test_no_variant_has_no_order():
    assert order(3, 0) == []


def test_a_steps_turn_is_the_variant_that_runs_first_in_it_in_every_pass():
    index = [*range(40), *range(30)]
    assert turns(index, 6).tolist() == [order(step, 6)[0] for step in index]
    assert turns(np.array([], int), 6).size == 0


def test_a_whole_rotation_has_every_variant_first_once():
    """Two passes of seven steps with three variants: six of each."""
    index = [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6]
    assert whole_rotations(index, 3).tolist() == ([True] * 6 + [False]) * 2


@pytest.mark.parametrize(("index", "kept"), [([], 0), ([0, 1], 0), ([0, 1, 2], 3), ([0, 0, 0], 0), ([0, 1, 2, 3], 3)])
def test_steps_that_complete_no_rotation_are_left_out(index, kept):
    assert whole_rotations(index, 3).sum() == kept


def test_every_step_of_a_single_variant_is_a_rotation():
    assert whole_rotations([0, 1, 2, 0], 1).all()
