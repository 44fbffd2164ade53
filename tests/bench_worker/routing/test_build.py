"""Making routers: by name, with the strategy's own parameters, or one sentence that says what is wrong."""

import inspect

import pytest

from bench_worker.errors import SpecError
from bench_worker.routing import ROUTERS, build
from bench_worker.strategies import STRATEGIES


def test_every_strategy_has_a_router_under_its_own_name():
    assert ROUTERS.keys() == STRATEGIES.keys()
    assert all(router.strategy == name for name, router in ROUTERS.items())


@pytest.mark.parametrize("strategy", ROUTERS)
def test_a_router_takes_the_parameters_that_are_recorded_for_it(strategy):
    taken = list(inspect.signature(ROUTERS[strategy].__init__).parameters)[2:]  # after self and num_experts
    assert set(taken) == {*STRATEGIES[strategy].parameters, *STRATEGIES[strategy].given}


@pytest.mark.parametrize(
    ("strategy", "params", "sentence"),
    [
        ("round_robin", {}, "strategy: 'round_robin' is not one of token_choice, expert_choice, dynamic, balanced, "
                            "hash, soft, group_limited"),
        ("token_choice", {}, "top_k: is missing; token_choice needs it"),
        ("dynamic", {}, "top_k: is missing; dynamic without max_experts needs it"),
        ("soft", {}, "top_k: is missing; soft without slots_per_expert needs it"),
        ("token_choice", {"top_k": 0}, "top_k: 0 is not allowed; it must be at least 1"),
        ("token_choice", {"top_k": 5}, "top_k: 5 is above the 4 experts"),
        ("hash", {"top_k": 5}, "top_k: 5 is above the 4 experts"),
        ("token_choice", {"top_k": 1.5}, "top_k: 1.5 is not a whole number"),
        ("token_choice", {"top_k": 1, "scoring": "tanh"}, "scoring: 'tanh' is not one of softmax, sigmoid"),
        ("token_choice", {"top_k": 1, "capacity_factor": 0.0},
         "capacity_factor: 0.0 is not allowed; it must be above 0"),
        ("token_choice", {"top_k": 1, "capacity_factor": -1.0},
         "capacity_factor: -1.0 is not allowed; it must be above 0"),
        ("token_choice", {"top_k": 1, "capacity_factor": float("nan")}, "capacity_factor: nan is not a finite number"),
        ("token_choice", {"top_k": 1, "bias": [0.0]}, "bias: has 1 number; it must have one for each of the 4 experts"),
        ("dynamic", {"top_k": 1, "top_p": 0.0}, "top_p: 0.0 is not allowed; it must be above 0"),
        ("dynamic", {"top_k": 1, "top_p": 1.01}, "top_p: 1.01 is not allowed; it must be at most 1"),
        ("dynamic", {"top_k": 1, "max_experts": 0}, "max_experts: 0 is not allowed; it must be at least 1"),
        ("balanced", {"top_k": 1, "solver": "greedy"}, "solver: 'greedy' is not one of auction, exact"),
        ("soft", {"slots_per_expert": 0}, "slots_per_expert: 0 is not allowed; it must be at least 1"),
        ("group_limited", {"top_k": 1, "num_groups": 3}, "num_groups: 3 does not divide the 4 experts"),
        ("group_limited", {"top_k": 1, "num_groups": 2, "topk_groups": 3}, "topk_groups: 3 is above the 2 groups"),
        ("group_limited", {"top_k": 3, "num_groups": 2, "topk_groups": 1},
         "topk_groups: 1 of 2 groups hold 2 experts; top_k is 3"),
        ("group_limited", {"top_k": 1, "group_score": "mean"}, "group_score: 'mean' is not one of top2, max"),
        ("hash", {"top_k": 1, "capacity_factor": 1.0}, "capacity_factor: 1.0 has no use with hash, which takes top_k"),
        ("expert_choice", {"top_k": 1, "vocab": 8}, "vocab: 8 has no use with expert_choice, which takes top_k"),
        ("hash", {"top_k": 1, "colour": "red"}, "colour: 'red' has no use with hash, which takes top_k"),
    ],
)  # fmt: skip
def test_parameters_that_make_no_sense_are_refused_in_one_sentence(strategy, params, sentence):
    with pytest.raises(SpecError) as caught:
        build(strategy, 4, **params)
    assert str(caught.value) == sentence


def test_there_must_be_experts():
    with pytest.raises(ValueError, match="num_experts: 0 is not allowed; it must be at least 1"):
        build("hash", 0, top_k=1)


def test_none_stands_for_the_strategys_default():
    assert build("dynamic", 8, top_k=2, top_p=None, max_experts=None, capacity_factor=None).max_experts == 4
