"""Token choice against plain loops, on random and on awkward scores."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_worker import reference
from bench_worker.routing import Assignments, build


@st.composite
def problems(draw):
    num_experts = draw(st.integers(1, 16))
    top_k = draw(st.integers(1, num_experts))
    num_tokens = draw(st.integers(1, 24))
    seed = draw(st.integers(0, 2**31))
    scores = torch.randn(num_tokens, num_experts, generator=torch.Generator().manual_seed(seed)) * draw(
        st.sampled_from([0.1, 1.0, 3.0])  # larger ones tie where a float32 weight is 1, and float64 sees no tie
    )
    return scores, top_k


def as_choices(assignments: Assignments) -> dict[tuple[int, int], float]:
    """(token, expert) -> weight; fails on an expert that a token got twice."""
    pairs = list(zip(assignments.token.tolist(), assignments.expert.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    return dict(zip(pairs, assignments.weight.tolist(), strict=True))


@given(
    problems(),
    st.sampled_from(["softmax", "sigmoid"]),
    st.booleans(),
    st.sampled_from([None, 0.25, 1.0, 1.25]),
    st.sampled_from([1.0, 2.5]),
)
def test_it_equals_the_plain_loops(problem, scoring, renormalize, capacity_factor, route_scale):
    scores, top_k = problem
    params = {
        "top_k": top_k,
        "scoring": scoring,
        "renormalize": renormalize,
        "capacity_factor": capacity_factor,
        "route_scale": route_scale,
    }
    actual = build("token_choice", scores.shape[1], **params).route(scores)
    expected = {(t, e): w for t, e, w in reference.token_choice(scores.double().tolist(), **params)}
    assert as_choices(actual).keys() == expected.keys()
    for pair, weight in as_choices(actual).items():
        assert weight == pytest.approx(expected[pair], rel=1e-4, abs=1e-6)


@given(problems(), st.sampled_from([None, 0.1, 0.5, 1.0, 4.0]))
def test_kept_and_dropped_are_all_assignments_and_no_expert_exceeds_its_capacity(problem, capacity_factor):
    scores, top_k = problem
    num_tokens, num_experts = scores.shape
    wanted = torch.bincount(scores.topk(top_k).indices.flatten(), minlength=num_experts)
    actual = build("token_choice", num_experts, top_k=top_k, capacity_factor=capacity_factor).route(scores)
    kept = torch.bincount(actual.expert, minlength=num_experts)
    assert actual.token.numel() + actual.dropped == top_k * num_tokens
    if capacity_factor is None:
        assert actual.dropped == 0
        assert torch.equal(kept, wanted)
    else:
        capacity = -(-int(capacity_factor * top_k * num_tokens * 1000) // (num_experts * 1000))
        assert torch.equal(kept, wanted.clamp(max=capacity))


@given(problems())
def test_renormalised_weights_of_a_token_sum_to_one(problem):
    scores, top_k = problem
    actual = build("token_choice", scores.shape[1], top_k=top_k).route(scores)
    sums = torch.zeros(scores.shape[0]).index_add_(0, actual.token, actual.weight)
    torch.testing.assert_close(sums, torch.ones_like(sums))


@given(problems())
def test_assignments_are_token_major(problem):
    scores, top_k = problem
    token = build("token_choice", scores.shape[1], top_k=top_k, capacity_factor=0.7).route(scores).token
    assert torch.equal(token, token.sort().values)


def test_a_full_expert_keeps_its_heaviest_assignments():
    # Both tokens want expert 0; capacity ceil(1.0 · 1 · 2 / 2) = 1 keeps the surer one, token 1.
    scores = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    kept = build("token_choice", 2, top_k=1, renormalize=False, capacity_factor=1.0).route(scores)
    assert (kept.token.tolist(), kept.expert.tolist(), kept.dropped) == ([1], [0], 1)


def test_a_bias_changes_the_choice_but_never_a_weight():
    scores = torch.tensor([[2.0, 1.0, 0.0]])
    bias = torch.tensor([-10.0, 0.0, 0.5])
    chosen = build("token_choice", 3, top_k=2, scoring="sigmoid", renormalize=False).route(scores, bias=bias)
    expected = torch.sigmoid(scores[0])
    assert as_choices(chosen) == {(0, 2): pytest.approx(expected[2]), (0, 1): pytest.approx(expected[1])}


def test_experts_with_a_score_of_minus_infinity_get_weight_zero():
    scores = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    assert sorted(build("token_choice", 3, top_k=2).route(scores).weight.tolist()) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"top_k": 0}, "top_k: 0 is not between 1 and the 4 experts"),
        ({"top_k": 5}, "top_k: 5 is not between 1 and the 4 experts"),
        ({"top_k": 1, "scoring": "tanh"}, "scoring: 'tanh' is not one of softmax, sigmoid"),
        ({"top_k": 1, "capacity_factor": 0.0}, "capacity_factor: 0.0 is not above 0"),
    ],
)
def test_it_refuses_parameters_that_make_no_sense(params, sentence):
    with pytest.raises(ValueError, match=sentence):
        build("token_choice", 4, **params)


def test_an_unknown_strategy_is_refused_by_name():
    with pytest.raises(ValueError, match="'round_robin' is not one of token_choice"):
        build("round_robin", 4)
