"""Bytes by domain, outcomes of several ranks, and a step as one piece, by hand."""

import numpy as np

from bench_worker.outcome import Outcome
from bench_worker.parallel.step import Whole, bytes_by_domain, together


def test_bytes_go_there_and_back_by_domain():
    sent = np.array([[1, 2, 4], [8, 16, 32], [64, 128, 256]])
    found = bytes_by_domain(sent, np.array([0, 0, 1]))
    # rank 0 dispatches 2 to rank 1 and sends back the 8 it got from there; ranks 0 and 1 share a node
    assert found["local"].tolist() == [2 * 1, 2 * 16, 2 * 256]
    assert found["intra_node"].tolist() == [2 + 8, 8 + 2, 0]
    assert found["inter_node"].tolist() == [4 + 64, 32 + 128, 64 + 128 + 4 + 32]
    assert sum(count.sum() for count in found.values()) == 2 * sent.sum()


def outcome(rows, dropped=0, common=1, either=2):
    return Outcome(np.array(rows), np.array([0, 3]), dropped, common, either)


def test_the_outcomes_of_ranks_add_up():
    found = together([outcome([[1, 2]], dropped=1), outcome([[3, 4]], dropped=2)])
    assert found.rows.tolist() == [[4, 6]]
    assert found.per_token.tolist() == [0, 6]
    assert (found.dropped, found.common, found.either) == (3, 2, 4)


def test_where_one_rank_has_no_choice_of_its_own_to_compare_there_is_none():
    assert together([outcome([[1]]), outcome([[1]], common=None, either=None)]).common is None


def test_what_stands_around_the_layers_is_not_theirs():
    assert Whole(100.0, np.array([30.0, 10.0])).layers_us(1) == 90.0
