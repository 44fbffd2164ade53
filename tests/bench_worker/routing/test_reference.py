"""The plain loops by hand, and the proof that a balanced assignment is the best against all there are."""

from itertools import combinations, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_worker.routing import build, reference
from bench_worker.routing.reference import Wrong
from tests.bench_worker.routing.make import made_scores

SCORES = [[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]]


def every_balanced_assignment(num_tokens, num_experts, top_k):
    """All ways to give each token k distinct experts with loads that differ by at most 1."""
    for chosen in product(combinations(range(num_experts), top_k), repeat=num_tokens):
        load = [sum(e in mine for mine in chosen) for e in range(num_experts)]
        if max(load) - min(load) <= 1:
            yield chosen


@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(1, 4), st.data())
def test_the_bound_is_the_best_there_is(num_tokens, num_experts, data):
    top_k = data.draw(st.integers(1, num_experts))
    scores = made_scores(num_tokens, num_experts, seed=data.draw(st.integers(0, 2**31))).double().tolist()
    worth = {
        chosen: sum(scores[t][e] for t, mine in enumerate(chosen) for e in mine)
        for chosen in every_balanced_assignment(num_tokens, num_experts, top_k)
    }
    best = max(worth, key=worth.get)
    load = [sum(e in mine for mine in best) for e in range(num_experts)]
    price = reference.prices_of(scores, best, load)
    assert reference.most_worth(scores, top_k, price) == pytest.approx(worth[best], abs=1e-9)
    any_price = made_scores(1, num_experts, seed=1)[0].tolist()
    assert reference.most_worth(scores, top_k, any_price) >= worth[best] - 1e-9


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ([(0, 0), (1, 0)], "the loads go from 0 to 2"),
        ([(0, 1), (1, 0)], "the scores chosen sum to 0, and 4 may be possible"),
        ([(0, 0), (0, 1)], "a token has not 1 distinct experts"),
        ([(0, 0)], "a token has not 1 distinct experts"),
    ],
)
def test_a_choice_that_is_not_the_best_balanced_one_is_found_out(pairs, sentence):
    scores = [[2.0, 0.0], [0.0, 2.0]]
    assert reference.balanced(scores, 1, [(0, 0), (1, 1)])
    with pytest.raises(Wrong, match=sentence):
        reference.balanced(scores, 1, pairs)


def test_token_choice_by_hand():
    assert reference.token_choice(SCORES, 1) == [(0, 0, 1.0), (1, 1, 1.0)]
    ((_, _, first), (_, _, second)) = reference.token_choice(SCORES[:1], 2, renormalize=False)
    assert (first, second) == pytest.approx((0.6652410, 0.2447285))  # e² and e¹ of e² + e¹ + e⁰


def test_expert_choice_by_hand():
    # C = max(1, floor(2 · 1 / 3 + 0.5)) = 1
    assert [(t, e) for t, e, _ in reference.expert_choice(SCORES, 1)] == [(0, 0), (1, 1), (1, 2)]


def test_dynamic_by_hand():
    assert [(t, e) for t, e, _ in reference.dynamic(SCORES, 0.7, 3)] == [(0, 0), (0, 1), (1, 1)]
    assert [(t, e) for t, e, _ in reference.dynamic(SCORES, 1.0, 2)] == [(0, 0), (0, 1), (1, 1), (1, 2)]


def test_soft_by_hand():
    # Without mixing the logits are the scores: over tokens e² / (e² + e⁰) for expert 0, over slots as token choice.
    slots = reference.soft(SCORES, torch.zeros(3, 3, 1))
    assert slots.dispatch[:, 0].tolist() == pytest.approx([0.8807971, 0.1192029])
    assert slots.combine[0].tolist() == pytest.approx([0.6652410, 0.2447285, 0.0900306])


def test_group_limited_by_hand():
    scores = [[5.0, -5.0, 2.0, 1.5]]
    assert [(t, e) for t, e, _ in reference.group_limited(scores, 1, 2, 1, "top2", "sigmoid")] == [(0, 2)]
    assert [(t, e) for t, e, _ in reference.group_limited(scores, 1, 2, 1, "max", "sigmoid")] == [(0, 0)]


def test_every_router_has_a_reference():
    scores, ids = made_scores(6, 4), torch.arange(6)
    for strategy in ("token_choice", "expert_choice", "dynamic", "balanced", "hash", "soft", "group_limited"):
        router = build(strategy, 4, top_k=2)
        assert reference.expected(router, scores, ids, router.route(scores, ids))
