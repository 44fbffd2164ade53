"""The load of experts as levels."""

from __future__ import annotations

import numpy as np

from webapp.ui import heat


def test_levels_are_even_shares_to_the_nearest_power_of_two() -> None:
    load = [0, 1, 1, 2, 3, 4, 6, 8, 11, 12, 16, 32, 64, *[0] * 7]  # 20 experts, 8 each on average
    expected = [0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 6, *[0] * 7]
    assert heat.levels(np.array([load])).ravel().tolist() == expected
    assert len(heat.LEVELS) == 7
    assert heat.levels(np.full((1, 4), 10)).ravel().tolist() == [3, 3, 3, 3]


def test_each_column_has_its_own_even_share() -> None:
    assert heat.levels(np.array([[1, 1], [100, 100], [0, 0]])).tolist() == [[3, 3, 0], [3, 3, 0]]


def test_layers_by_experts_are_a_map_with_words() -> None:
    map = heat.map_of(np.array([[3, 1], [2, 2], [4, 0]]), "layer", 3, 1, "mine")
    assert map.levels.tolist() == [[4, 3, 4], [2, 3, 0]]
    assert map.label == "Load of 2 experts by layer, mine: the hottest has 1.50 times an even share, none get nothing."
    assert map.caption == "2 experts, top to bottom; 3 layers, left to right"
