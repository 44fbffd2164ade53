"""Adding up what many steps of routing came to."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench_worker import outcome
from bench_worker.outcome import Outcome, Routed


def of(rows, per_token=(0, 4), dropped=0, common=None, either=None):
    return Outcome(np.array(rows), np.array(per_token), dropped, common, either)


def test_sums_over_steps_and_layers():
    routed = Routed(layers=2, num_experts=3)
    routed.add(of([[1, 0, 2], [4, 0, 0]], (0, 1, 3, 0), dropped=2, common=5, either=8))
    routed.add(of([[0, 0, 1], [0, 9, 0]], (2, 0, 1, 0), dropped=1, common=3, either=8))
    found = routed.outcome(causal=True)
    assert routed.expert_assignments.tolist() == [[1, 0, 3], [4, 9, 0]]
    assert (found.assignments, found.dropped, found.expert_overlap) == (17, 3, 0.5)
    assert found.experts_per_token == [2, 1, 4]
    assert found.rows_per_expert == [7, 2, 1, 1, 1]  # 0; 1, 1; 2; 4; 9
    assert found.expert_assignments_over_time == [[5, 0, 2], [0, 9, 1]]


def test_slots_have_no_experts_of_their_own_to_compare():
    routed = Routed(1, 2)
    routed.add(of([[3, 3]], (0, 0, 4)))
    assert routed.outcome(causal=False).expert_overlap is None


@given(st.integers(1, 1000))
def test_any_number_of_steps_takes_few_groups_and_loses_nothing(steps):
    routed = Routed(1, 1)
    for step in range(steps):
        routed.add(of([[step]], (0, 1)))
    found = routed.outcome(causal=True)
    groups, size = found.expert_assignments_over_time, found.steps_per_group
    assert len(groups) <= outcome.MAX_GROUPS
    assert len(groups) == -(-steps // size)
    assert groups == [[sum(range(a, min(a + size, steps)))] for a in range(0, steps, size)]
