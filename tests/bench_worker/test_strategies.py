"""What the strategies' parameters are for a model, and how many rows they make."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_worker import models, strategies
from bench_worker.routing import SoftSlots, build
from bench_worker.spec_fields import Routing
from bench_worker.strategies import STRATEGIES, parameters

MODELS = models.presets()


def test_every_strategy_of_the_schema_is_described():
    assert set(STRATEGIES) == set(Routing.model_fields["strategy"].annotation.__args__)
    assert all(s.summary.endswith(".") and set(s.parameters) < set(Routing.model_fields) for s in STRATEGIES.values())


def test_every_parameter_belongs_to_a_strategy():
    assert {name for s in STRATEGIES.values() for name in s.parameters} == set(Routing.model_fields) - {"strategy"}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("olmoe-1b-7b", {"top_k": 8, "scoring": "softmax", "renormalize": False, "route_scale": 1.0}),
        ("qwen3-30b-a3b", {"top_k": 8, "scoring": "softmax", "renormalize": True, "route_scale": 1.0}),
        # a softmax over the k chosen logits is a renormalised one over all
        ("gpt-oss-20b", {"top_k": 4, "scoring": "softmax", "renormalize": True, "route_scale": 1.0}),
        ("llama-4-scout", {"top_k": 1, "scoring": "sigmoid", "renormalize": False, "route_scale": 1.0}),
        ("glm-4.5-air",
         {"top_k": 8, "scoring": "sigmoid", "renormalize": True, "route_scale": 1.0, "bias": [0.0] * 128}),
    ],
)  # fmt: skip
def test_what_is_not_set_is_the_models(model, expected):
    assert parameters(Routing(), MODELS[model]) == expected


def test_deepseeks_own_routing_is_limited_to_groups():
    own = strategies.own_routing(MODELS["deepseek-v3"])
    assert own.strategy == "group_limited"
    found = parameters(own, MODELS["deepseek-v3"])
    assert {name: found[name] for name in ("num_groups", "topk_groups", "route_scale")} == {
        "num_groups": 8, "topk_groups": 4, "route_scale": 2.5
    }  # fmt: skip
    assert strategies.own_routing(MODELS["olmoe-1b-7b"]).strategy == "token_choice"


def test_a_number_of_groups_of_ones_own_leaves_the_models_behind():
    found = parameters(Routing(strategy="group_limited", num_groups=16), MODELS["deepseek-v3"])
    assert (found["num_groups"], "topk_groups" in found) == (16, False)


def test_what_is_set_comes_before_the_models():
    asked = Routing(top_k=2, scoring="sigmoid", renormalize=True, route_scale=3.0, bias=[1.0] * 64)
    assert parameters(asked, MODELS["olmoe-1b-7b"]) == {
        "top_k": 2, "scoring": "sigmoid", "renormalize": True, "route_scale": 3.0, "bias": [1.0] * 64
    }  # fmt: skip


def test_what_is_random_comes_from_the_seed_and_the_vocabulary():
    assert parameters(Routing(strategy="hash"), MODELS["olmoe-1b-7b"], seed=7) == {
        "top_k": 8, "vocab": 50304, "seed": 7
    }  # fmt: skip


@given(st.sampled_from(list(STRATEGIES)), st.integers(1, 40), st.integers(1, 12), st.data())
def test_no_routing_makes_more_rows_than_there_is_room_for(strategy, num_tokens, num_experts, data):
    params = {"top_k": data.draw(st.integers(1, num_experts))}
    small = {"vocab": 64} if strategy == "hash" else {}
    router = build(strategy, num_experts, **params, **small)
    routed = router.route(torch.randn(num_tokens, num_experts), torch.arange(num_tokens))
    made = routed.dispatch.shape[1] if isinstance(routed, SoftSlots) else routed.expert.numel()
    most = strategies.routed_rows(strategy, params, num_tokens, num_experts)
    assert made <= most
    if strategy != "dynamic":
        assert made == most


def test_slots_and_exact_solvers_take_memory_that_counts():
    count = strategies.selection_bytes
    assert count("token_choice", {"top_k": 8}, 2048, 64) == 0
    # 16,384 slots: logits, dispatch and combine of 2,048 tokens in float32, the last two again in 2 bytes each
    assert count("soft", {"top_k": 8}, 2048, 64) == 16_384 * (16 * 2048 + 8 * 64)
    assert count("balanced", {"top_k": 1, "solver": "exact"}, 2048, 64) == 16 * 2112**2
    assert count("balanced", {"top_k": 8, "solver": "auction"}, 2048, 64) == 0


def test_an_expert_keeps_its_share_of_the_assignments_times_the_factor_rounded_up():
    assert strategies.capacity(num_tokens=10, num_experts=8, top_k=2, factor=1.0) == 3  # 2.5
    assert strategies.capacity(num_tokens=10, num_experts=8, top_k=2, factor=1.25) == 4  # 3.125
    assert strategies.capacity(num_tokens=1, num_experts=64, top_k=1, factor=0.5) == 1
