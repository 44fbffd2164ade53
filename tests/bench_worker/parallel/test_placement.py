from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.parallel.placement import POLICIES, Placement, expert_load, judge, misfit, place
from tests.bench_worker.parallel.slow_eplb import slow_eplb

#: The sample of EPLB's README: 2 layers of 12 experts.
SAMPLE = np.array(
    [
        [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
        [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
    ]
)
RECORDINGS = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "routing"


@st.composite
def problems(draw: st.DrawFn) -> dict:
    """Sizes that fit together, and a load with ties and silent experts."""
    nodes, in_node, groups_a_node = (draw(st.integers(1, 3)) for _ in range(3))
    ranks = nodes * in_node
    groups = draw(st.sampled_from([1, nodes * groups_a_node]))
    experts = groups * draw(st.integers(1, 4))
    redundant = -experts % ranks + ranks * draw(st.integers(0, 2))
    layers = draw(st.integers(1, 3))
    numbers = st.lists(st.integers(0, 30), min_size=layers * experts, max_size=layers * experts)
    load = np.array(draw(numbers)).reshape(layers, experts)
    return {"load": load, "num_ranks": ranks, "redundant": redundant, "num_nodes": nodes, "num_groups": groups}


def experts_by_rank(placement: Placement, layer: int) -> list[list[int]]:
    rows = placement.physical_to_logical[layer].reshape(placement.num_ranks, -1)
    return [sorted(row) for row in rows.tolist()]


def transfers(placement: Placement, source_load: np.ndarray, num_nodes: int) -> tuple[float, float]:
    """Assignments that leave their node, and that leave their rank, counted one by one."""
    layers, ranks, _ = source_load.shape
    off_node = off_rank = 0.0
    for layer in range(layers):
        for slot, expert in enumerate(placement.physical_to_logical[layer]):
            at = placement.rank_of_physical[slot]
            for source in range(ranks):
                part = source_load[layer, source, expert] / placement.copies[layer, expert]
                off_rank += part * (source != at)
                off_node += part * (source // (ranks // num_nodes) != at // (ranks // num_nodes))
    return off_node, off_rank


def test_the_sample_of_eplb_gets_the_published_ratios():
    """max / mean rank load: 1.208 and 1.242 with groups kept in nodes, 1.073 and 1.190 without."""
    hierarchical = place(SAMPLE, 8, "eplb", redundant=4, num_nodes=2, num_groups=4)
    assert hierarchical.imbalance(SAMPLE).round(3).tolist() == [1.208, 1.242]
    global_ = place(SAMPLE, 8, "eplb", redundant=4)
    assert global_.imbalance(SAMPLE).round(3).tolist() == [1.073, 1.190]


def test_groups_that_nodes_do_not_divide_share_one_pool():
    three = place(SAMPLE, 8, "eplb", redundant=4, num_nodes=2, num_groups=3)
    assert three.imbalance(SAMPLE).round(3).tolist() == [1.073, 1.190]


@given(problems())
def test_eplb_places_as_its_description_says(problem: dict):
    placement = place(policy="eplb", **problem)
    for layer, load in enumerate(problem["load"]):
        load = load if load.any() else np.ones_like(load)
        slow = slow_eplb(
            load.tolist(), problem["redundant"], problem["num_groups"], problem["num_nodes"], problem["num_ranks"]
        )
        fast = placement.rank_load(np.where(problem["load"].any(axis=1)[:, None], problem["load"], 1))[layer]
        counts = placement.copies[layer]
        assert [sorted(rank) for rank in slow] == experts_by_rank(placement, layer) or np.allclose(
            sorted(sum(load[e] / counts[e] for e in rank) for rank in slow), sorted(fast)
        )  # ties may fall either way


@given(problems(), st.sampled_from(POLICIES), st.booleans())
def test_every_policy_keeps_every_expert_equal_counts_and_the_load(problem: dict, policy: str, sourced: bool):
    load, ranks = problem["load"], problem["num_ranks"]
    source = np.tile(load[:, None] / ranks, (1, ranks, 1)) if sourced else None
    placement = place(policy=policy, source_load=source, **problem)
    assert placement.physical_to_logical.shape == (len(load), load.shape[1] + problem["redundant"])
    assert (placement.copies >= 1).all()
    assert set(np.bincount(placement.rank_of_physical, minlength=ranks)) == {
        placement.physical_to_logical.shape[1] // ranks
    }
    assert np.allclose(placement.rank_load(load).sum(axis=1), load.sum(axis=1))
    assert (placement.imbalance(load) >= 1 - 1e-9).all()


def test_contiguous_gives_blocks_and_copies_of_the_first_experts():
    assert experts_by_rank(place(SAMPLE, 4, "contiguous"), 0) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert experts_by_rank(place(SAMPLE, 4, "contiguous", redundant=4), 1)[3] == [0, 1, 2, 3]


def test_round_robin_deals_experts_out():
    assert experts_by_rank(place(SAMPLE, 4, "round_robin"), 0) == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]


@given(st.integers(2, 8), st.integers(1, 40), st.integers(0, 3))
def test_no_copy_that_round_robin_deals_lies_beside_its_original(ranks: int, experts: int, more: int):
    redundant = -experts % ranks + more * ranks
    if redundant >= experts - ranks:
        return  # more copies than other places
    for held in experts_by_rank(place(np.ones((1, experts)), ranks, "round_robin", redundant), 0):
        assert len(set(held)) == len(held)


@given(problems(), st.integers(0, 2**32 - 1))
def test_locality_saves_transfers_within_its_bounds(problem: dict, seed: int):
    load, ranks, nodes = problem["load"], problem["num_ranks"], problem["num_nodes"]
    parts = np.random.default_rng(seed).dirichlet(np.ones(ranks), size=load.shape).transpose(0, 2, 1)
    source = load[:, None] * parts
    before = place(load, ranks, "eplb", problem["redundant"])
    after = place(load, ranks, "locality", problem["redundant"], nodes, source_load=source)
    for packs in (ranks, nodes):
        old, new = (p.rank_load(load).reshape(len(load), packs, -1).sum(axis=2) for p in (before, after))
        assert (new.max(axis=1) <= np.maximum(old.max(axis=1), 1.1 * old.mean(axis=1)) + 1e-9).all()
    was, now = transfers(before, source, nodes), transfers(after, source, nodes)
    assert 8 * now[0] + now[1] <= 8 * was[0] + was[1] + 1e-6


def test_locality_brings_experts_to_those_who_ask():
    """Two ranks, four experts alike; each rank asks for two of them, which eplb has put on different ranks."""
    load = np.full((1, 4), 10.0)
    source = np.array([[[10.0, 0, 10, 0], [0, 10, 0, 10]]])
    eplb = place(load, 2, "eplb")
    flipped = source[:, ::-1] if transfers(eplb, source, 1)[1] == 0 else source
    assert transfers(place(load, 2, "locality", source_load=flipped), flipped, 1) == (0.0, 0.0)


def test_locality_that_knows_no_sources_is_eplbs_placement():
    local = place(SAMPLE, 8, "locality", redundant=4)
    assert (local.physical_to_logical == place(SAMPLE, 8, "eplb", redundant=4).physical_to_logical).all()


def test_load_is_counted_from_the_experts_of_tokens():
    ids = np.array([[[0, 1], [2, 1]], [[0, 2], [2, 0]]], dtype=np.uint8)  # 2 tokens, 2 layers, 2 each
    assert expert_load(ids, 3).tolist() == [[2, 1, 1], [1, 1, 2]]


def test_a_placement_is_judged_on_its_own_load_and_on_another():
    placement = place(np.array([[3.0, 1.0, 1.0, 3.0]]), 2, "contiguous")
    judged = judge(placement, np.array([[3.0, 1.0, 1.0, 3.0]]), np.array([[3.0, 3.0, 1.0, 1.0]]))
    assert (judged.fitted, judged.held_out) == (1.0, 1.5)
    assert judge(placement, np.array([[3.0, 1.0, 1.0, 3.0]]), None).held_out is None


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="needs the recordings of ../shared/data/routing")
@pytest.mark.parametrize(
    ("file", "experts", "redundant", "contiguous", "at_most"),
    [
        ("esft_dsv2lite_intent", 64, 8, 1.438, 1.0285),
        ("esft_dsv2lite_summary", 64, 8, 1.421, 1.0945),
        ("gptoss20b_decode", 32, 0, 1.516, 1.4145),
    ],
)
def test_on_recordings_the_second_half_is_as_balanced_as_with_the_published_algorithm(
    file: str, experts: int, redundant: int, contiguous: float, at_most: float
):
    ids = np.load(RECORDINGS / f"{file}_topk_ids.npz")["ids"]
    first, second = (expert_load(half, experts) for half in np.split(ids, [len(ids) // 2]))
    assert judge(place(first, 8, "contiguous"), first, second).held_out == pytest.approx(contiguous, abs=0.001)
    eplb = judge(place(first, 8, "eplb", redundant), first, second)
    assert eplb.held_out is not None
    assert eplb.held_out <= at_most
    assert eplb.fitted < eplb.held_out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"policy": "eplp"},
            "policy: 'eplp' is not one of contiguous, round_robin, eplb, locality (did you mean eplb?)",
        ),
        ({"num_ranks": 0}, "num_ranks: 0 is not allowed; it is at least 1"),
        ({"num_nodes": 0}, "num_nodes: 0 is not allowed; it is at least 1"),
        ({"redundant": -1}, "redundant: -1 is not allowed; it is at least 0"),
        (
            {"num_ranks": 8},
            "num_ranks: 8 ranks don't divide 12 experts (12 and 0 redundant); 4 more redundant ones would",
        ),
        ({"num_nodes": 3}, "num_nodes: 3 nodes don't divide 4 ranks"),
        ({"num_groups": 5}, "num_groups: 5 groups don't divide 12 experts"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(changes: dict, message: str):
    arguments = {"num_ranks": 4, "policy": "contiguous"} | changes
    with pytest.raises(ValueError) as error:  # noqa: PT011
        place(SAMPLE, **arguments)
    assert str(error.value) == message
    assert misfit(12, **arguments) == message


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_loads_that_are_no_counts_are_refused(bad: float):
    with pytest.raises(ValueError, match="load: holds a NaN, an infinity or a negative number"):
        place(np.array([[1.0, bad]]), 1, "eplb")


def test_a_source_load_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"source_load: has the shape \[2, 3, 12\]"):
        place(SAMPLE, 4, "locality", source_load=np.ones((2, 3, 12)))
