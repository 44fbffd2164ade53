"""What every strategy promises: the shape of its answer, and an error for scores that are none."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.routing import ROUTERS, Assignments, SoftSlots, build
from bench_worker.strategies import STRATEGIES
from tests.bench_worker.routing.make import made_scores, problems

EVERY = pytest.mark.parametrize("strategy", ROUTERS)


def made(strategy, num_experts, top_k):
    small = {"vocab": 64} if strategy == "hash" else {}  # a table of all token ids takes its time to make
    return build(strategy, num_experts, top_k=top_k, **small)


def route(strategy, scores, top_k):
    return made(strategy, scores.shape[1], top_k).route(scores, token_ids=torch.arange(scores.shape[0]))


@EVERY
@given(problem=problems())
def test_assignments_are_token_major_and_finite_on_every_kind_of_scores(strategy, problem):
    scores, top_k = problem
    num_tokens, num_experts = scores.shape
    routed = route(strategy, scores, top_k)
    if isinstance(routed, SoftSlots):
        assert routed.dispatch.shape == routed.combine.shape
        assert routed.dispatch.isfinite().all()
        assert routed.combine.isfinite().all()
        return
    assert (routed.token.dtype, routed.expert.dtype, routed.weight.dtype) == (torch.int64, torch.int64, torch.float32)
    assert routed.token.shape == routed.expert.shape == routed.weight.shape
    assert (routed.num_tokens, routed.num_experts) == (num_tokens, num_experts)
    assert torch.equal(routed.token, routed.token.sort().values)
    assert len(set(zip(routed.token.tolist(), routed.expert.tolist(), strict=True))) == routed.token.numel()
    assert ((routed.expert >= 0) & (routed.expert < num_experts)).all()
    assert (routed.weight.isfinite() & (routed.weight >= 0)).all()


@EVERY
@given(problem=problems(), data=st.data())
def test_a_nan_is_an_error_that_names_its_token(strategy, problem, data):
    scores, top_k = problem
    token = data.draw(st.integers(0, scores.shape[0] - 1))
    scores[token, data.draw(st.integers(0, scores.shape[1] - 1))] = torch.nan
    with pytest.raises(ValueError, match=f"^scores: token {token} has a NaN; numbers and -inf are allowed$"):
        route(strategy, scores, top_k)


@EVERY
def test_plus_infinity_is_an_error_too(strategy):
    scores = made_scores(3, 4)
    scores[2, 1] = torch.inf
    with pytest.raises(ValueError, match=r"^scores: token 2 has a \+inf; numbers and -inf are allowed$"):
        route(strategy, scores, 2)


@EVERY
def test_a_token_without_any_finite_score_is_routed_as_if_all_were_the_same(strategy):
    scores, level = made_scores(5, 4), made_scores(5, 4)
    scores[3], level[3] = -torch.inf, 0.0
    one, other = route(strategy, scores, 2), route(strategy, level, 2)
    assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in vars(one) if name not in
               ("num_tokens", "num_experts", "dropped"))  # fmt: skip


@EVERY
def test_bfloat16_scores_are_routed_as_the_numbers_that_they_are(strategy):
    narrow = made_scores(9, 6, "narrow")
    one, other = route(strategy, narrow, 2), route(strategy, narrow.float(), 2)
    assert torch.equal(vars(one)["dispatch" if strategy == "soft" else "weight"],
                       vars(other)["dispatch" if strategy == "soft" else "weight"])  # fmt: skip


@EVERY
@pytest.mark.parametrize("scores", [torch.zeros(4), torch.zeros(2, 3), torch.zeros(2, 4, 1), torch.zeros(2, 4).long()])
def test_scores_must_be_a_matrix_of_numbers_for_its_experts(strategy, scores):
    with pytest.raises(ValueError, match=r"^scores: (float32|int64) \[.*\] is not a matrix of numbers \[tokens, 4 exp"):
        made(strategy, 4, 1).route(scores, token_ids=torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize("strategy", ["token_choice", "group_limited"])
@pytest.mark.parametrize(
    ("bias", "sentence"),
    [
        (torch.zeros(3), r"bias: has the shape \[3\]; it must be \[4\]"),
        (torch.tensor([0.0, torch.nan, 0.0, 0.0]), r"bias: holds a NaN or \+inf; numbers and -inf are allowed"),
        (torch.tensor([0.0, torch.inf, 0.0, 0.0]), r"bias: holds a NaN or \+inf; numbers and -inf are allowed"),
    ],
)
def test_a_bias_must_be_a_number_for_each_expert(strategy, bias, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(strategy, 4, top_k=1).route(made_scores(2, 4), bias=bias)


@EVERY
def test_no_tokens_make_no_assignments(strategy):
    routed = route(strategy, torch.zeros(0, 4), 2)
    assert (routed.dispatch if isinstance(routed, SoftSlots) else routed.token).shape[0] == 0


@EVERY
def test_what_is_timed_gives_what_is_checked(strategy):
    scores, ids = made_scores(12, 8), torch.arange(12)
    router = made(strategy, 8, 2)
    timed = router.select(router.checked(scores, ids), ids)
    whole = router.route(scores, ids)
    name = "combine" if isinstance(whole, SoftSlots) else "expert"
    assert torch.equal(getattr(timed, name), getattr(whole, name))


@EVERY
def test_strategies_that_look_ahead_say_so(strategy):
    router = made(strategy, 4, 1)
    assert router.causal == STRATEGIES[strategy].causal == (strategy not in ("expert_choice", "soft"))


@EVERY
@given(problem=problems(kinds=["plain"], max_tokens=8), data=st.data())
def test_a_causal_strategy_gives_a_token_the_same_experts_whatever_comes_after_it(strategy, problem, data):
    scores, top_k = problem
    seen = data.draw(st.integers(1, scores.shape[0]))
    if not STRATEGIES[strategy].causal or strategy == "balanced":  # balanced looks at the whole step, by its nature
        return
    alone, whole = route(strategy, scores[:seen], top_k), route(strategy, scores, top_k)
    assert isinstance(whole, Assignments)
    assert torch.equal(alone.expert, whole.expert[whole.token < seen])
