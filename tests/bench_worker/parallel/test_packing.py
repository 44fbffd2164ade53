from __future__ import annotations

import numpy as np

from bench_worker.parallel.packing import copies_of, pack, replicate


def test_the_heaviest_item_goes_first_and_each_into_the_lightest_pack_with_room():
    # 9 | 8, then 7 to the 8's pack? no: 9 > 8, so 7 joins 8 (15) and 1 is left for 9's pack
    assert pack(np.array([[1.0, 9.0, 7.0, 8.0]]), 2).tolist() == [[1, 0, 3, 2]]


def test_packs_have_equal_counts_even_where_that_costs_balance():
    assert pack(np.array([[10.0, 1.0, 1.0, 1.0]]), 2).tolist() == [[0, 3, 1, 2]]


def test_each_copy_goes_to_the_item_with_the_most_weight_a_copy():
    copy_of, copies = replicate(np.array([[12.0, 5.0, 7.0]]), 3)  # 12 → 6; then 7 → 3.5; then 6 → 4
    assert copy_of.tolist() == [[0, 1, 2, 0, 2, 0]]
    assert copies.tolist() == [[3, 1, 2]]


def test_copies_are_counted_by_layer():
    assert copies_of(np.array([[0, 1, 1], [2, 0, 0]]), 3).tolist() == [[1, 2, 0], [2, 0, 1]]
