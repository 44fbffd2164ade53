"""From a logical expert to one of its copies, as the ranks choose it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.parallel.placement import place
from bench_worker.parallel.replicas import Replicas

CPU = torch.device("cpu")


def one_by_one(logical, expert, rank):
    """The j-th assignment of an expert goes to its copy (``rank`` + j) mod copies."""
    turns, chosen = dict.fromkeys(range(max(logical) + 1), rank), []
    for each in expert:
        copies = [slot for slot, held in enumerate(logical) if held == each]
        chosen.append(copies[turns[each] % len(copies)])
        turns[each] += 1
    return chosen


@given(st.integers(0, 10_000), st.sampled_from([0, 4, 8]))
def test_the_copies_of_an_expert_take_turns(seed, redundant):
    random = np.random.default_rng(seed)
    placement = place(random.pareto(1.0, (1, 8)), 4, "eplb", redundant)
    expert, rank = random.integers(0, 8, 60), int(random.integers(0, 4))
    replicas = Replicas(placement.physical_to_logical[0], 8, CPU)
    chosen = replicas.physical(torch.from_numpy(expert), rank)
    assert chosen.tolist() == one_by_one(placement.physical_to_logical[0].tolist(), expert.tolist(), rank)
    assert placement.physical_to_logical[0][chosen.numpy()].tolist() == expert.tolist()


def test_ranks_that_choose_in_one_go_choose_as_each_does_by_itself():
    placement = place(np.array([[5.0, 1.0, 1.0, 1.0]]), 2, "eplb", 4)
    replicas = Replicas(placement.physical_to_logical[0], 4, CPU)
    expert, rank = torch.tensor([0, 0, 0, 1, 0, 0, 1, 0]), torch.tensor([0, 1, 0, 1, 1, 0, 0, 1])
    together = replicas.physical(expert, rank)
    for own in (0, 1):
        assert together[rank == own].tolist() == replicas.physical(expert[rank == own], own).tolist()


def test_an_expert_without_a_copy_is_refused():
    with pytest.raises(ValueError, match="expert 1 has no copy"):
        Replicas(np.array([0, 0, 2, 2]), 3, CPU)
