"""Columns of each rank from what was measured, by hand."""

import numpy as np
import pytest

from bench_worker.rank_record import RankStep, dispatched_bytes, idle_share, imbalance, rank_steps


def step(load, experts_us, idle_us, other_us=(0.0, 0.0)):
    return RankStep(
        load=np.array(load), rows=np.array([8, 8]),
        stages_us={
            "route.gate": np.array([1.0, 1.0]), "experts": np.array(experts_us), "other.head": np.array(other_us),
        },
        idle_us=np.array(idle_us), bytes={"local": np.array([5, 6])}, dispatched_bytes=np.array([[5, 1], [2, 6]]),
    )  # fmt: skip


STEPS = [step([[3, 1], [2, 2]], [8.0, 2.0], [0.0, 6.0], (4.0, 4.0)), step([[1, 3], [4, 0]], [2.0, 6.0], [4.0, 0.0])]


def test_times_are_for_one_layer_and_what_stands_beside_them_once():
    first, second = rank_steps(STEPS, layers=2)
    assert first.stages_us == {
        "route": [0.5, 0.5], "route.gate": [0.5, 0.5], "experts": [4.0, 1.0], "other": [4.0, 0.0],
        "other.head": [4.0, 0.0],
    }  # fmt: skip
    assert (first.idle_us, second.idle_us) == ([0.0, 2.0], [3.0, 0.0])
    assert (first.assignments, second.assignments) == ([5, 5], [3, 3])
    assert second.bytes == {"local": [6, 6]}


def test_imbalance_is_over_ranks_and_then_over_layers():
    # layer 0: loads 4 and 4; layer 1: 6 and 2
    assert imbalance(STEPS) == (1.0 + 1.5) / 2


def test_a_layer_without_any_load_is_balanced():
    assert imbalance([step([[0, 0], [4, 0]], [1.0, 1.0], [0.0, 0.0])]) == (1.0 + 2.0) / 2


def test_idle_is_a_share_of_all_ranks_time():
    busy = 8 + 2 + 2 + 6 + 4 * 1 + 2 * 4
    assert idle_share(STEPS) == pytest.approx(10 / (10 + busy))


def test_bytes_from_rank_to_rank_add_up():
    assert dispatched_bytes(STEPS).tolist() == [[10, 2], [4, 12]]
