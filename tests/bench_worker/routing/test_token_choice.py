"""Token choice against plain loops, on random and on awkward scores."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.routing import build, reference
from tests.bench_worker.routing.make import load_of, made_scores, problems, weights_of

FACTORS = st.sampled_from([0.1, 0.25, 0.5, 1.0, 1.25, 4.0])


@given(
    problems(kinds=["plain"]),
    st.sampled_from(["softmax", "sigmoid"]),
    st.booleans(),
    st.none() | FACTORS,
    st.sampled_from([1.0, 2.5]),
    st.integers(0, 2**31) | st.none(),
)
def test_it_equals_the_plain_loops(problem, scoring, renormalize, capacity_factor, route_scale, bias_seed):
    scores, top_k = problem
    bias = None if bias_seed is None else made_scores(1, scores.shape[1], seed=bias_seed)[0].tolist()
    params = {
        "top_k": top_k,
        "scoring": scoring,
        "renormalize": renormalize,
        "capacity_factor": capacity_factor,
        "route_scale": route_scale,
        "bias": bias,
    }
    actual = weights_of(build("token_choice", scores.shape[1], **params).route(scores))
    expected = {(t, e): w for t, e, w in reference.token_choice(scores.double().tolist(), **params)}
    assert actual.keys() == expected.keys()
    assert actual == pytest.approx(expected, rel=1e-4, abs=1e-6)


@given(problems(), st.none() | FACTORS)
def test_kept_and_dropped_are_all_assignments_and_an_expert_keeps_what_it_can(problem, capacity_factor):
    scores, top_k = problem
    num_tokens, num_experts = scores.shape
    dropless = build("token_choice", num_experts, top_k=top_k).route(scores)
    routed = build("token_choice", num_experts, top_k=top_k, capacity_factor=capacity_factor).route(scores)
    assert routed.token.numel() + routed.dropped == top_k * num_tokens
    if capacity_factor is None:
        assert routed.dropped == 0
    else:  # capacity ceil(cf·k·T / E), in hundredths, which are exact
        capacity = -(-round(capacity_factor * 100) * top_k * num_tokens // (100 * num_experts))
        assert load_of(routed) == [min(wanted, capacity) for wanted in load_of(dropless)]


@given(problems(), st.none() | FACTORS)
def test_what_an_expert_drops_is_never_heavier_than_what_it_keeps(problem, capacity_factor):
    scores, top_k = problem
    params = {"top_k": top_k, "renormalize": False}
    everything = weights_of(build("token_choice", scores.shape[1], **params).route(scores))
    kept = weights_of(build("token_choice", scores.shape[1], **params, capacity_factor=capacity_factor).route(scores))
    for expert in {e for _, e in everything}:
        of_expert = [w for (t, e), w in kept.items() if e == expert]
        dropped = [w for (t, e), w in everything.items() if e == expert and (t, e) not in kept]
        assert max(dropped, default=0.0) <= min(of_expert, default=1.0)


@given(problems(), st.sampled_from(["softmax", "sigmoid"]))
def test_renormalised_weights_of_a_token_sum_to_one(problem, scoring):
    scores, top_k = problem
    routed = build("token_choice", scores.shape[1], top_k=top_k, scoring=scoring).route(scores)
    sums = torch.zeros(scores.shape[0]).index_add_(0, routed.token, routed.weight)
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_weights_sum_to_one_even_where_every_sigmoid_is_too_small_for_a_float():
    routed = build("token_choice", 3, top_k=2, scoring="sigmoid").route(torch.tensor([[-300.0, -301.0, -400.0]]))
    assert routed.weight.tolist() == pytest.approx([0.7310586, 0.2689414])  # 1 / (1 + e^-1)


def test_scores_where_the_sigmoid_is_one_still_have_an_order():
    routed = build("token_choice", 3, top_k=1, scoring="sigmoid").route(torch.tensor([[40.0, 60.0, 50.0]]))
    assert routed.expert.tolist() == [1]


def test_a_full_expert_keeps_its_heaviest_assignments():
    # Both tokens want expert 0; capacity ceil(1.0 · 1 · 2 / 2) = 1 keeps the surer one, token 1.
    scores = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    kept = build("token_choice", 2, top_k=1, renormalize=False, capacity_factor=1.0).route(scores)
    assert (kept.token.tolist(), kept.expert.tolist(), kept.dropped) == ([1], [0], 1)


def test_a_bias_changes_the_choice_but_never_a_weight():
    scores = torch.tensor([[2.0, 1.0, 0.0]])
    bias = torch.tensor([-10.0, 0.0, 0.5])
    expected = torch.sigmoid(scores[0])
    wanted = {(0, 2): pytest.approx(expected[2]), (0, 1): pytest.approx(expected[1])}
    router = build("token_choice", 3, top_k=2, scoring="sigmoid", renormalize=False)
    assert weights_of(router.route(scores, bias=bias)) == wanted
    built_in = build("token_choice", 3, top_k=2, scoring="sigmoid", renormalize=False, bias=bias.tolist())
    assert weights_of(built_in.route(scores)) == wanted


def test_a_bias_given_with_the_scores_takes_the_place_of_the_one_built_in():
    router = build("token_choice", 2, top_k=1, bias=[0.0, 100.0])
    scores = torch.tensor([[1.0, 0.0]])
    assert router.route(scores).expert.tolist() == [1]
    assert router.route(scores, bias=torch.zeros(2)).expert.tolist() == [0]


def test_experts_with_a_score_of_minus_infinity_get_weight_zero():
    scores = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    assert sorted(build("token_choice", 3, top_k=2).route(scores).weight.tolist()) == [0.0, 1.0]
