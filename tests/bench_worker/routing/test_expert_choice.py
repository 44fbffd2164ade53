"""Expert choice against plain loops, and what every step must keep to."""

import math

import pytest
import torch
from hypothesis import given

from bench_worker.routing import build, reference
from tests.bench_worker.routing.make import load_of, made_scores, per_token, problems, weights_of


@given(problems(kinds=["plain"]))
def test_it_equals_the_plain_loops(problem):
    scores, top_k = problem
    actual = weights_of(build("expert_choice", scores.shape[1], top_k=top_k).route(scores))
    expected = {(t, e): w for t, e, w in reference.expert_choice(scores.double().tolist(), top_k)}
    assert actual.keys() == expected.keys()
    assert actual == pytest.approx(expected, rel=1e-4, abs=1e-6)


@given(problems())
def test_every_expert_has_the_same_number_of_rows_and_a_token_any_number_of_experts(problem):
    scores, top_k = problem
    num_tokens, num_experts = scores.shape
    routed = build("expert_choice", num_experts, top_k=top_k).route(scores)
    capacity = max(1, math.floor(num_tokens * top_k / num_experts + 0.5))
    assert load_of(routed) == [min(capacity, num_tokens)] * num_experts
    assert all(0 <= count <= num_experts for count in per_token(routed))
    assert routed.dropped == 0


@given(problems(max_tokens=1))
def test_a_single_token_goes_to_every_expert(problem):
    scores, top_k = problem
    assert per_token(build("expert_choice", scores.shape[1], top_k=top_k).route(scores)) == [scores.shape[1]]


def test_an_expert_takes_the_tokens_that_are_surest_of_it():
    # p of expert 0 is largest for tokens 2 and 0, of expert 1 for 1 and 3; C = floor(4 · 1 / 2 + 0.5) = 2.
    scores = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.5, 0.4]])
    routed = build("expert_choice", 2, top_k=1).route(scores)
    assert weights_of(routed) == {
        (0, 0): pytest.approx(0.7310586), (1, 1): pytest.approx(0.8807971), (2, 0): pytest.approx(0.9525741),
        (3, 1): pytest.approx(0.4750208),
    }  # fmt: skip


def test_half_a_row_counts_as_one():
    assert load_of(build("expert_choice", 4, top_k=1).route(made_scores(6, 4))) == [2] * 4  # 6 · 1 / 4 = 1.5
