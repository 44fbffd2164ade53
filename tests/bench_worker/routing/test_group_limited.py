"""Group-limited routing against plain loops, and which groups and weights a token gets."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.routing import build, reference
from tests.bench_worker.routing.make import KINDS, made_scores, per_token, weights_of


@st.composite
def grouped(draw, kinds=KINDS):
    """``(scores, parameters)`` with groups that divide the experts, and enough kept for k."""
    groups, size = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    kept = draw(st.integers(1, groups))
    params = {
        "top_k": draw(st.integers(1, kept * size)),
        "num_groups": groups,
        "topk_groups": kept,
        "group_score": draw(st.sampled_from(["top2", "max"])),
        "scoring": draw(st.sampled_from(["softmax", "sigmoid"])),
        "renormalize": draw(st.booleans()),
        "route_scale": draw(st.sampled_from([1.0, 2.5])),
    }
    if draw(st.booleans()):  # negative ones too: a mask of 0 in the place of −inf would then win
        bias = made_scores(1, groups * size, seed=draw(st.integers(0, 2**31)))[0] - draw(st.sampled_from([0.0, 3.0]))
        params["bias"] = bias.tolist()
    scores = made_scores(
        draw(st.integers(1, 12)), groups * size, draw(st.sampled_from(kinds)), draw(st.integers(0, 2**31))
    )
    return scores, params


@given(grouped(kinds=["plain"]))
def test_it_equals_the_plain_loops(problem):
    scores, params = problem
    actual = weights_of(build("group_limited", scores.shape[1], **params).route(scores))
    expected = {(t, e): w for t, e, w in reference.group_limited(scores.double().tolist(), **params)}
    assert actual.keys() == expected.keys()
    assert actual == pytest.approx(expected, rel=1e-4, abs=1e-6)


@given(grouped())
def test_a_token_has_k_experts_in_at_most_so_many_groups(problem):
    scores, params = problem
    routed = build("group_limited", scores.shape[1], **params).route(scores)
    size = scores.shape[1] // params["num_groups"]
    assert per_token(routed) == [params["top_k"]] * scores.shape[0]
    for token in range(scores.shape[0]):
        groups = set((routed.expert[routed.token == token] // size).tolist())
        assert len(groups) <= params["topk_groups"]


@given(grouped(kinds=["plain", "ties", "narrow"]))
def test_a_bias_changes_the_choice_but_never_a_weight(problem):
    scores, params = problem
    params |= {"renormalize": False, "route_scale": 1.0}
    routed = build("group_limited", scores.shape[1], **params).route(scores)
    affinity = scores.float().sigmoid() if params["scoring"] == "sigmoid" else scores.float().softmax(dim=1)
    torch.testing.assert_close(routed.weight, affinity[routed.token, routed.expert])


def test_the_best_expert_loses_when_its_group_does():
    # Groups {0, 1} and {2, 3}: by their two best sigmoids the second wins, though expert 0 is the best of all.
    scores = torch.tensor([[5.0, -5.0, 2.0, 1.5]])
    of = {"num_groups": 2, "topk_groups": 1, "top_k": 1, "scoring": "sigmoid"}
    assert build("group_limited", 4, **of, group_score="top2").route(scores).expert.tolist() == [2]
    assert build("group_limited", 4, **of, group_score="max").route(scores).expert.tolist() == [0]


def test_nothing_of_another_group_is_taken_where_every_bias_is_negative():
    # All biased values are below 0; a mask of 0 would let experts of the group that lost in.
    router = build("group_limited", 4, num_groups=2, topk_groups=1, top_k=2, scoring="sigmoid", bias=[-9.0] * 4)
    assert sorted(router.route(torch.tensor([[3.0, 2.0, 1.0, 0.0]])).expert.tolist()) == [0, 1]


def test_deepseek_v3s_weights_are_normalised_and_scaled():
    router = build("group_limited", 256, num_groups=8, topk_groups=4, top_k=8, scoring="sigmoid", route_scale=2.5)
    routed = router.route(made_scores(5, 256))
    sums = torch.zeros(5).index_add_(0, routed.token, routed.weight)
    torch.testing.assert_close(sums, torch.full((5,), 2.5))
    assert router.group_score == "top2"


@pytest.mark.parametrize(
    ("experts", "top_k", "groups", "kept"),
    [(128, 8, 8, 4), (60, 4, 6, 3), (7, 1, 7, 3), (11, 2, 1, 1), (16, 16, 8, 8), (8, 5, 8, 5), (2, 1, 2, 1)],
)
def test_a_model_without_groups_gets_some(experts, top_k, groups, kept):
    router = build("group_limited", experts, top_k=top_k)
    assert (router.num_groups, router.topk_groups) == (groups, kept)
