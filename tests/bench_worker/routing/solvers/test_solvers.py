"""Both solvers against all assignments there are, and the fast one against the exact one where those are too many."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_worker.routing.reference import balanced
from bench_worker.routing.solvers import SOLVERS, auction, exact
from bench_worker.routing.solvers.finite import finite
from tests.bench_worker.routing.make import made_scores, problems
from tests.bench_worker.routing.test_reference import every_balanced_assignment

EVERY = pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS)


def worth(scores, experts):
    return float(scores.double().gather(1, experts).sum())


def gap(scores, top_k, experts, best):
    """What is missing to the optimum, as a share of what it has over a random balanced assignment."""
    average = top_k * float(scores.double().mean(dim=1).sum())
    return (worth(scores, best) - worth(scores, experts)) / max(worth(scores, best) - average, 1e-9)


def assert_balanced(experts, num_experts, top_k):
    load = torch.bincount(experts.flatten(), minlength=num_experts)
    assert int(load.max() - load.min()) <= 1
    assert all(len(set(row)) == top_k for row in experts.tolist())


@EVERY
@settings(max_examples=40)
@given(num_tokens=st.integers(1, 5), num_experts=st.integers(1, 4), data=st.data())
def test_no_balanced_assignment_is_better(solve, num_tokens, num_experts, data):
    top_k = data.draw(st.integers(1, num_experts))
    kind = data.draw(st.sampled_from(["plain", "ties", "flat", "steep"]))
    scores = made_scores(num_tokens, num_experts, kind, data.draw(st.integers(0, 2**31)))
    experts = solve(scores, top_k)
    assert_balanced(experts, num_experts, top_k)
    best = max(
        sum(float(scores[t, e]) for t, mine in enumerate(chosen) for e in mine)
        for chosen in every_balanced_assignment(num_tokens, num_experts, top_k)
    )
    assert worth(scores, experts) == pytest.approx(best, abs=1e-3 * float(scores.abs().max() + 1e-3))


@settings(max_examples=60)
@given(problems(kinds=["plain", "ties", "narrow", "steep"], max_tokens=40, max_experts=20))
def test_the_auction_is_as_good_as_the_exact_solver(problem):
    scores, top_k = problem[0].float(), problem[1]
    experts = auction.solve(scores, top_k)
    assert_balanced(experts, scores.shape[1], top_k)
    assert gap(scores, top_k, experts, exact.solve(scores, top_k)) <= 1e-3


def families():
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(400, 48, generator=generator)
    popular = plain - 2 * torch.arange(1, 49).log()
    few_directions = torch.randn(400, 4, generator=generator) @ torch.randn(4, 48, generator=generator)
    kinds = plain[torch.randint(3, (400,), generator=generator)]
    return {
        "gaussian": plain,
        "popular": popular,
        "few directions": few_directions,
        "heavy": plain.exp() ** 3,
        "whole numbers": (plain * 2).round(),
        "three kinds of tokens": kinds,
        "same": torch.zeros(400, 48),
    }


@pytest.mark.parametrize("family", families())
def test_the_auction_is_as_good_as_the_exact_solver_on_many_tokens(family):
    scores = families()[family]
    experts = auction.solve(scores, 1)  # 48 does not divide 400
    assert_balanced(experts, 48, 1)
    assert gap(scores, 1, experts, exact.solve(scores, 1)) <= 1e-3


@pytest.mark.parametrize("top_k", [2, 5])
@pytest.mark.parametrize("family", families())
def test_the_auction_needs_no_more_than_its_own_prices_to_be_proved_right(family, top_k):
    scores = families()[family][:250]
    experts = auction.solve(scores, top_k)
    pairs = [(token, expert) for token, row in enumerate(experts.tolist()) for expert in row]
    balanced(scores.double().tolist(), top_k, pairs)  # raises Wrong otherwise


@EVERY
@pytest.mark.parametrize("level", [0.0, 3.0, -200.0])
def test_equal_scores_are_spread_evenly(solve, level):
    assert_balanced(solve(torch.full((50, 8), level), 3), 8, 3)


@EVERY
def test_a_forbidden_pair_is_avoided_whatever_it_costs(solve):
    scores = made_scores(40, 8) * 5
    scores[:, ::2] -= 50
    scores[torch.arange(40), torch.arange(40) % 8] = -torch.inf
    experts = solve(scores, 2)
    assert_balanced(experts, 8, 2)
    assert scores.gather(1, experts).isfinite().all()


def test_finite_scores_keep_their_differences():
    values, spread = finite(torch.tensor([[3.0, 1.0], [-5.0, -4.0]]))
    assert values.tolist() == [[0.0, -2.0], [-1.0, 0.0]]
    assert spread == pytest.approx((1.25 / 2) ** 0.5)  # ±1, ±0.5 about each row's mean


def test_a_forbidden_score_is_below_any_chain_of_others():
    values, _ = finite(torch.tensor([[0.0, -3.0, -torch.inf]]))
    assert values[0, 2] < 3 * -3.0


def test_scores_without_any_difference_have_a_spread_of_one():
    assert finite(torch.full((4, 3), 7.0))[1] == 1.0
