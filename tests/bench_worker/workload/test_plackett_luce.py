"""Weights whose top-k sample has given inclusion probabilities, against enumeration and against sampling."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.workload.plackett_luce import fit_weights, inclusion


def enumerated(weights, top_k):
    """π by all orders in which k can be drawn."""
    chance = np.zeros(len(weights))
    for drawn in permutations(range(len(weights)), top_k):
        probability, left = 1.0, sum(weights)
        for expert in drawn:
            probability *= weights[expert] / left
            left -= weights[expert]
        chance[list(drawn)] += probability
    return chance


@given(st.lists(st.floats(0.01, 100.0), min_size=2, max_size=6), st.data())
def test_inclusion_probabilities_are_those_of_all_draws(weights, data):
    top_k = data.draw(st.integers(1, len(weights) - 1))
    found = inclusion(np.array(weights), top_k)
    np.testing.assert_allclose(found, enumerated(weights, top_k), rtol=1e-3, atol=1e-6)
    assert found.sum() == pytest.approx(top_k, rel=1e-4)


@given(st.integers(2, 40), st.data())
def test_fitted_weights_give_the_shares_that_were_asked_for(num_experts, data):
    top_k = data.draw(st.integers(1, num_experts - 1))
    weights = np.array(data.draw(st.lists(st.floats(0.001, 1.0), min_size=num_experts, max_size=num_experts)))
    wanted = inclusion(weights, top_k)
    share = wanted / wanted.sum()
    np.testing.assert_allclose(inclusion(fit_weights(share, top_k), top_k), wanted, rtol=2e-3, atol=1e-5)


def test_by_hand():
    # Two of three drawn with weights 2, 1, 1: the last is out if the others are drawn first,
    # 2/4 · 1/2 + 1/4 · 2/3 = 5/12, so it is in with 7/12; the first with 2 − 2 · 7/12 = 10/12.
    np.testing.assert_allclose(inclusion(np.array([2.0, 1.0, 1.0]), 2), [10 / 12, 7 / 12, 7 / 12], rtol=1e-9)
    np.testing.assert_allclose(fit_weights(np.array([10, 7, 7]) / 24, 2), [1.0, 0.5, 0.5], rtol=1e-3)


def test_an_expert_without_a_share_has_no_weight():
    assert fit_weights(np.array([0.5, 0.3, 0.2, 0.0]), 1)[3] == 0.0


def test_where_every_token_has_the_same_experts_they_alone_have_weight():
    assert fit_weights(np.array([0.0, 0.5, 0.0, 0.5]), 2).tolist() == [0.0, 1.0, 0.0, 1.0]


def test_an_expert_of_every_token_can_be_fitted_beside_others():
    weights = fit_weights(np.array([0.5, 0.25, 0.25]), 2)
    assert inclusion(weights, 2)[0] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("share", "top_k", "sentence"),
    [
        ([0.6, 0.4], 2, r"popularity: expert 0 has 0.6000 of the assignments; with top_k 2 an expert can't have more "
                        r"than 1/2, once in every token"),
        ([0.5, 0.4], 1, "popularity: the shares sum to 0.9; they must sum to 1"),
        ([1.5, -0.5], 1, "popularity: expert 1 has -0.5; a share is a number from 0 to 1"),
        ([float("nan"), 1.0], 1, "popularity: expert 0 has nan; a share is a number from 0 to 1"),
        ([[1.0]], 1, r"popularity: has the shape \[1, 1\]; it must be \[experts\]"),
        ([], 1, r"popularity: has the shape \[0\]; it must be \[experts\]"),
        ([1.0], 2, "top_k: 2 is not between 1 and the 1 experts"),
    ],
)  # fmt: skip
def test_shares_that_can_not_be_are_refused(share, top_k, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        fit_weights(np.array(share), top_k)
