"""Dynamic routing against plain loops, and how many experts a token gets."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.routing import build, reference
from tests.bench_worker.routing.make import made_scores, per_token, problems, weights_of

TOP_P = st.sampled_from([0.05, 0.2, 0.4, 0.7, 0.95, 1.0])


@given(problems(kinds=["plain"]), TOP_P, st.integers(1, 16) | st.none())
def test_it_equals_the_plain_loops(problem, top_p, max_experts):
    scores, top_k = problem
    params = {"top_p": top_p, "max_experts": max_experts}
    actual = weights_of(build("dynamic", scores.shape[1], top_k=top_k, **params).route(scores))
    most = min(scores.shape[1], max_experts or 2 * top_k)
    expected = {(t, e): w for t, e, w in reference.dynamic(scores.double().tolist(), top_p, most)}
    assert actual.keys() == expected.keys()
    assert actual == pytest.approx(expected, rel=1e-4, abs=1e-6)


@given(problems(), TOP_P)
def test_a_token_takes_the_shortest_prefix_that_exceeds_top_p_and_no_more_than_it_may(problem, top_p):
    scores, top_k = problem
    routed = build("dynamic", scores.shape[1], top_k=top_k, top_p=top_p).route(scores)
    most = min(2 * top_k, scores.shape[1])
    probability = scores.double().softmax(dim=1)
    for token, count in enumerate(per_token(routed)):
        mine = probability[token, routed.expert[routed.token == token]]
        assert 1 <= count <= most
        assert torch.allclose(mine, probability[token].sort(descending=True).values[:count])  # a prefix
        assert float(mine[:-1].sum()) <= top_p + 1e-6  # none shorter would do
        assert count == most or float(mine.sum()) > top_p - 1e-6


@given(problems())
def test_more_probability_takes_more_experts(problem):
    scores, top_k = problem
    counts = [
        per_token(build("dynamic", scores.shape[1], top_k=top_k, top_p=top_p).route(scores))
        for top_p in (0.1, 0.3, 0.6, 0.9, 1.0)
    ]
    for fewer, more in pairwise(counts):
        assert all(a <= b for a, b in zip(fewer, more, strict=True))


def test_a_token_that_is_sure_keeps_one():
    scores = torch.full((1, 8), -torch.inf)
    scores[0, 5] = 0.0
    routed = build("dynamic", 8, top_k=4).route(scores)
    assert weights_of(routed) == {(0, 5): 1.0}


def test_a_sum_that_never_exceeds_top_p_stops_at_max_experts():
    routed = build("dynamic", 64, top_k=8, top_p=1.0, max_experts=5).route(made_scores(3, 64))
    assert per_token(routed) == [5, 5, 5]


def test_a_sum_that_only_reaches_top_p_does_not_exceed_it():
    # Five equal probabilities of 0.2: two make 0.4, which is not above it; the third does.
    assert per_token(build("dynamic", 5, top_k=5, top_p=0.4).route(torch.zeros(1, 5))) == [3]


def test_the_weights_are_the_probabilities_as_they_are():
    routed = build("dynamic", 2, top_k=1, top_p=0.9).route(torch.tensor([[1.0, 0.0]]))
    assert routed.weight.tolist() == pytest.approx([0.7310586, 0.2689414])


def test_max_experts_alone_is_enough():
    assert per_token(build("dynamic", 8, top_p=1.0, max_experts=3).route(made_scores(1, 8))) == [3]
