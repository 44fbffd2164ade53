"""Soft slots against float64 formulas, and what mixing must keep to."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.routing import build, reference
from tests.bench_worker.routing.make import made_scores, problems


@given(problems(kinds=["plain", "ties", "flat", "narrow"]))
def test_it_equals_the_formulas_in_float64(problem):
    scores, top_k = problem
    router = build("soft", scores.shape[1], top_k=top_k)
    routed = router.route(scores)
    expected = reference.soft(scores.double().tolist(), router.mixers(scores.shape[0]))
    torch.testing.assert_close(routed.dispatch.double(), expected.dispatch, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(routed.combine.double(), expected.combine, rtol=1e-4, atol=1e-6)


@given(problems())
def test_dispatch_sums_to_one_over_tokens_and_combine_over_slots(problem):
    scores, top_k = problem
    num_tokens, num_experts = scores.shape
    routed = build("soft", num_experts, top_k=top_k).route(scores)
    slots = num_experts * max(1, round(num_tokens * top_k / num_experts))
    assert routed.dispatch.shape == routed.combine.shape == (num_tokens, slots)
    torch.testing.assert_close(routed.dispatch.sum(dim=0), torch.ones(slots))
    torch.testing.assert_close(routed.combine.sum(dim=1), torch.ones(num_tokens))


@given(problems(kinds=["plain"]), st.randoms(use_true_random=False))
def test_permuted_tokens_are_mixed_in_the_same_way(problem, random):
    scores, top_k = problem
    order = list(range(scores.shape[0]))
    random.shuffle(order)
    router = build("soft", scores.shape[1], top_k=top_k)
    plain, permuted = router.route(scores), router.route(scores[order])
    torch.testing.assert_close(permuted.dispatch, plain.dispatch[order])
    torch.testing.assert_close(permuted.combine, plain.combine[order])


def test_an_experts_slots_differ():
    dispatch = build("soft", 4, slots_per_expert=3).route(made_scores(6, 4)).dispatch.view(6, 4, 3)
    assert (dispatch[:, :, 0] - dispatch[:, :, 1]).abs().amax(dim=0).min() > 1e-3


def test_slots_per_expert_can_be_set():
    assert build("soft", 4, slots_per_expert=5).route(made_scores(7, 4)).dispatch.shape == (7, 20)


def test_a_slot_stays_the_same_when_there_are_more():
    few, many = build("soft", 4, top_k=2), build("soft", 4, top_k=2)
    many.prepare(200, torch.device("cpu"))
    assert torch.equal(few.mixers(6), many.mixers(6))


def test_mixers_are_normal_with_variance_one_over_the_experts():
    mixers = build("soft", 32, slots_per_expert=64).mixers(1)
    assert abs(float(mixers.mean())) < 5 * (1 / 32 / mixers.numel()) ** 0.5
    assert float(mixers.var()) == pytest.approx(1 / 32, rel=0.02)


def test_another_seed_has_other_slots():
    one, other = (build("soft", 4, top_k=2, seed=seed).mixers(6) for seed in (1, 2))
    assert not torch.equal(one, other)
