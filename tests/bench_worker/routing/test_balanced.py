"""Balanced routing: distinct experts, even loads, and no better assignment."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.routing import build, reference
from tests.bench_worker.routing.make import load_of, made_scores, per_token, problems, weights_of

SOLVERS = pytest.mark.parametrize("solver", ["auction", "exact"])


@SOLVERS
@given(problem=problems(max_tokens=12, max_experts=9))
def test_tokens_have_distinct_experts_and_loads_differ_by_at_most_one(solver, problem):
    scores, top_k = problem
    routed = build("balanced", scores.shape[1], top_k=top_k, solver=solver).route(scores)
    assert per_token(routed) == [top_k] * scores.shape[0]
    assert len(weights_of(routed)) == routed.expert.numel()  # distinct
    assert max(load_of(routed)) - min(load_of(routed)) <= 1
    torch.testing.assert_close(routed.weight, scores.float().sigmoid()[routed.token, routed.expert])


@SOLVERS
@given(problem=problems(kinds=["plain", "ties", "flat", "narrow", "steep"]))
def test_the_reference_proves_it_to_be_the_best(solver, problem):
    scores, top_k = problem
    routed = build("balanced", scores.shape[1], top_k=top_k, solver=solver).route(scores)
    pairs = list(zip(routed.token.tolist(), routed.expert.tolist(), strict=True))
    choices = reference.balanced(scores.double().tolist(), top_k, pairs)
    assert weights_of(routed) == pytest.approx({(t, e): w for t, e, w in choices}, rel=1e-5, abs=1e-7)


@given(st.integers(2, 40), st.integers(2, 12), st.data())
def test_a_constant_added_to_a_tokens_scores_changes_nothing(num_tokens, num_experts, data):
    top_k = data.draw(st.integers(1, num_experts))
    scores = made_scores(num_tokens, num_experts, seed=data.draw(st.integers(0, 2**31)))
    router = build("balanced", num_experts, top_k=top_k)
    moved = scores + torch.arange(num_tokens)[:, None] * 8.0
    worth = [float(scores.double()[routed.token, routed.expert].sum()) for routed in map(router.route, (scores, moved))]
    assert worth[0] == pytest.approx(worth[1], abs=1e-3)


def test_a_forbidden_expert_is_only_taken_where_nothing_else_is_left():
    # Expert 1 must take two tokens, and only token 3 may have it; the best of the others to send is token 0.
    scores = torch.tensor([[1.0, -torch.inf], [5.0, -torch.inf], [5.0, -torch.inf], [0.0, 4.0]])
    for solver in ("auction", "exact"):
        routed = build("balanced", 2, top_k=1, solver=solver).route(scores)
        assert routed.expert.tolist().count(1) == 2
        assert routed.expert[3] == 1
