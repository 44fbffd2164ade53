"""Waiting told apart from transfer, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.parallel.timeline import measured, modelled

NAMES = ["", "permute", "dispatch", "experts", "combine.transfer", "combine.reduce"]


def test_modelled_transfers_begin_when_the_last_rank_has_come():
    spans = np.array([
        [9.0, 10.0, 99.0, 20.0, 99.0, 1.0],
        [9.0, 30.0, 99.0, 5.0, 99.0, 2.0],
    ])  # fmt: skip
    line = modelled(NAMES, spans, {
        "dispatch": [np.array([4.0, 6.0])], "combine.transfer": [np.array([1.0, 3.0])],
    })  # fmt: skip
    # both dispatch at 30; rank 0 computes from 34 to 54, rank 1 from 36 to 41; both combine at 54
    assert line.idle_us.tolist() == [20.0 + 3.0, 13.0]  # rank 0 ends at 54 + 1 + 1 = 56, rank 1 at 54 + 3 + 2 = 59
    assert {stage: times.tolist() for stage, times in line.stages_us.items()} == {
        "permute": [10.0, 30.0], "dispatch": [4.0, 6.0], "experts": [20.0, 5.0], "combine.transfer": [1.0, 3.0],
        "combine.reduce": [1.0, 2.0],
    }  # fmt: skip
    assert line.slowest == 1
    assert sum(line.of_slowest().values()) == 59.0


def test_a_measured_exchange_is_divided_where_the_last_rank_arrives():
    names = ["permute", "dispatch", "experts"]
    # rank 0 arrives at 100 + 10, rank 1 at 105 + 35 = 140; both have all at 150
    line = measured(names, np.array([100.0, 105.0]), np.array([[10.0, 40.0, 7.0], [35.0, 10.0, 2.0]]))
    assert line.stages_us["dispatch"].tolist() == [10.0, 10.0]
    assert line.idle_us.tolist() == [30.0, 5.0 + 5.0]  # rank 1 started 5 later, and waits 5 for rank 0 at the end
    assert line.slowest == 1


def test_a_collective_of_a_group_waits_for_no_other_group():
    names, groups = ["attention.heads", "attention.all_reduce", "dispatch"], np.array([0, 0, 1, 1])
    spans = np.array([[10.0, 99.0, 99.0], [30.0, 99.0, 99.0], [5.0, 99.0, 99.0], [7.0, 99.0, 99.0]])
    transfers = {"attention.all_reduce": [np.array([2.0, 2.0, 3.0, 3.0])], "dispatch": [np.full(4, 1.0)]}
    line = modelled(names, spans, transfers, groups)
    assert line.stages_us["attention.all_reduce"].tolist() == [2.0, 2.0, 3.0, 3.0]
    # the first group has reduced at 30 + 2, the second at 7 + 3, and then waits 22 for the first
    assert line.idle_us.tolist() == [20.0, 0.0, 2.0 + 22.0, 22.0]
    real = np.array([[10.0, 22.0, 1.0], [30.0, 2.0, 1.0], [5.0, 5.0, 23.0], [7.0, 3.0, 23.0]])
    same = measured(names, np.zeros(4), real, groups)
    assert same.idle_us.tolist() == line.idle_us.tolist()
    assert {name: us.tolist() for name, us in same.stages_us.items()} == {
        name: us.tolist() for name, us in line.stages_us.items()
    }


@given(st.integers(0, 10_000), st.integers(1, 6))
def test_stages_and_idle_sum_to_the_same_span_on_every_rank(seed, ranks):
    random = np.random.default_rng(seed)
    names = NAMES * 2
    spans = random.exponential(10.0, (ranks, len(names)))
    transfers = {name: list(random.exponential(5.0, (2, ranks))) for name in ("dispatch", "combine.transfer")}
    starts = random.exponential(3.0, ranks)
    for line in (modelled(names, spans, transfers), measured(["permute", "experts"], starts, spans[:, :2])):
        total = np.sum(list(line.stages_us.values()), axis=0) + line.idle_us
        assert total == pytest.approx(np.full(ranks, total[0]))
        assert (line.idle_us >= 0).all()
