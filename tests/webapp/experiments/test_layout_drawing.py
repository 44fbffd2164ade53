"""Who stands where, in words and as nodes, groups and ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from django.template.loader import render_to_string

from bench_worker.spec_fields import Parallel
from webapp.experiments.layout_drawing import Drawing, drawing, in_words


def drawn(
    tp: int = 1, dp: int = 1, nodes: int = 1, experts: int = 64, held: np.ndarray | None = None, **parallel: Any
) -> Drawing:
    asked = Parallel.model_validate({"layout": {"tp": tp, "dp": dp, "nodes": nodes}} | parallel)
    return drawing(asked, experts, held)


def test_ranks_stand_in_their_attention_group_and_the_groups_on_their_node() -> None:
    found = drawn(tp=2, dp=4, nodes=2)
    assert found.caption == (
        "8 ranks on 2 nodes: attention in 4 groups of 2 (TP 2 × DP 4), 64 experts over all of them (EP 8)."
    )
    ranks = {
        (node.number, group.number): [(rank.number, rank.holds) for rank in group.ranks]
        for node in found.nodes
        for group in node.groups
    }
    assert ranks == {
        (0, 0): [(0, "0–7"), (1, "8–15")],
        (0, 1): [(2, "16–23"), (3, "24–31")],
        (1, 2): [(4, "32–39"), (5, "40–47")],
        (1, 3): [(6, "48–55"), (7, "56–63")],
    }


def test_a_group_wider_than_a_node_has_a_part_on_each() -> None:
    found = drawn(tp=4, nodes=2)
    assert [[(group.number, len(group.ranks)) for group in node.groups] for node in found.nodes] == [[(0, 2)], [(0, 2)]]


def test_one_rank_holds_everything() -> None:
    found = drawn()
    assert found.caption == "One rank holds all 64 experts."
    assert found.nodes == []  # no drawing says more


def test_experts_that_only_their_load_places_are_counted() -> None:
    found = drawn(dp=8, placement="eplb", redundant_experts=8)
    assert "64 experts and 8 copies over all of them" in found.caption
    assert found.nodes[0].groups[3].ranks[0].holds == "9 experts, by their load"


def test_experts_that_are_known_are_named_and_all_of_them_on_hover() -> None:
    held = np.array([[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]])
    ranks = [group.ranks[0] for group in drawn(dp=2, placement="eplb", held=held).nodes[0].groups]
    assert ranks[1].holds == "1, 3, 5, 7, …"
    assert ranks[1].all_of_them == "1, 3, 5, 7, 9, 11"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (drawn(dp=3), "3 ranks don't divide 64 experts"),
        (drawn(dp=4, nodes=3), "3 nodes don't divide 4 ranks"),
    ],
)
def test_a_layout_that_cannot_be_says_why_and_draws_nothing(found: Drawing, words: str) -> None:
    assert found.problem is not None
    assert words in found.problem
    assert found.nodes == []


def test_of_many_nodes_the_first_are_drawn_and_the_rest_said() -> None:
    found = drawn(dp=64, nodes=2, redundant_experts=64)
    assert (len(found.nodes), found.rest) == (2, "")
    wide = drawn(dp=256, nodes=32, experts=256)
    assert (len(wide.nodes), wide.rest) == (8, "And 24 more nodes alike.")
    one = drawn(dp=128, experts=256)
    assert (len(one.nodes[0].groups), one.rest) == (64, "And 64 more ranks alike.")


@pytest.mark.parametrize(
    ("numbers", "most", "words"),
    [([], None, ""), ([3], 4, "3"), ([7, 8, 9, 3], 4, "3, 7–9"), ([0, 2, 4], 2, "0, 2, …"), ([1, 1], None, "1")],
)
def test_numbers_are_told_by_their_runs(numbers: list[int], most: int | None, words: str) -> None:
    assert in_words(numbers, most) == words


def test_the_drawing_is_read_without_seeing_it() -> None:
    page = render_to_string("experiments/_layout.html", {"layout": drawn(tp=2, dp=1)})
    assert 'aria-label="Attention groups of node 0"' in page
    assert 'title="Rank 1: experts 32–63"' in page
