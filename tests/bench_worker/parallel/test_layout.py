"""Ranks, groups and nodes, and which rank dispatches which token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.parallel.layout import Layout


def test_two_by_four_ranks_are_eight_experts_ranks_on_two_nodes():
    layout = Layout(tp=2, dp=4, nodes=2)
    assert layout.num_ranks == 8
    assert layout.node_of_rank().tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_requests_go_round_the_groups_and_a_groups_tokens_are_divided():
    layout = Layout(tp=2, dp=2, nodes=1)
    # rows 0-2 are of request 4 (group 0), row 3 of request 7 (group 1), rows 4-5 of request 6 (group 0)
    rows = layout.rows_of_ranks(np.array([4, 7, 6]), np.array([3, 1, 2]))
    assert [own.tolist() for own in rows] == [[0, 1, 2], [4, 5], [3], []]


@given(
    tp=st.integers(1, 4), dp=st.integers(1, 5),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12), first=st.integers(0, 100),
)  # fmt: skip
def test_every_token_is_dispatched_once_by_a_rank_of_its_group(tp, dp, lengths, first):
    requests = np.arange(first, first + len(lengths))
    rows = Layout(tp, dp, 1).rows_of_ranks(requests, np.array(lengths))
    assert sorted(np.concatenate(rows).tolist()) == list(range(sum(lengths)))
    request_of_row = np.repeat(requests, lengths)
    for rank, own in enumerate(rows):
        assert all(request_of_row[row] % dp == rank // tp for row in own)
    for group in range(dp):
        sizes = [len(own) for own in rows[group * tp : (group + 1) * tp]]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_nodes_hold_equally_many_ranks(nodes):
    assert set(np.bincount(Layout(1, 8, nodes).node_of_rank())) == {8 // nodes}
