"""DeepSpeed's own layer: what it routes, marks and refuses. Its results are checked in test_backends."""

import pytest
import torch

from bench_worker.kernels.base import ExpertWeights
from bench_worker.kernels.deepspeed_layer import DeepSpeedLayer
from bench_worker.routing import build
from bench_worker.spec import Spec
from bench_worker.stages import UNTIMED, NoClock
from bench_worker.weights import Weights

CPU = torch.device("cpu")


class Marks(NoClock):
    def __init__(self):
        self.names = []

    def inner(self, name):
        self.names.append(name)

    outer = inner


def layer(top_k=2, shared=None, seed=0):
    made = Weights(torch.float32, CPU, seed)
    experts = ExpertWeights(made.matrix(8, 2 * 32, 64), made.matrix(8, 64, 32))
    return DeepSpeedLayer(made.matrix(8, 64), experts, shared, "swiglu", "gate_up", top_k), made


def refusal(model="qwen3-30b-a3b", routing=None, **kernels):
    spec = {"model": model, "routing": routing or {}, "kernels": {"experts": "deepspeed_layer", **kernels}}
    return DeepSpeedLayer.supports(Spec.model_validate(spec), CPU)


@pytest.mark.parametrize("top_k", [1, 2, 3])
@pytest.mark.parametrize("tokens", [1, 5, 64])
def test_it_chooses_and_weighs_as_token_choice_does(top_k, tokens):
    moe, made = layer(top_k)
    scores = made.noise(tokens, 8)
    _, chosen = moe.forward(made.noise(tokens, 64), scores, NoClock())
    wanted = build("token_choice", 8, top_k=top_k, renormalize=top_k > 1).route(scores)
    assert (chosen.num_tokens, chosen.num_experts, chosen.dropped) == (tokens, 8, 0)
    assert torch.equal(chosen.token, wanted.token)
    assert torch.equal(chosen.expert.view(tokens, top_k).sort().values, wanted.expert.view(tokens, top_k).sort().values)
    by_expert = [dict(zip(a.expert.tolist(), a.weight.tolist(), strict=False)) for a in (chosen, wanted)]
    assert by_expert[0] == pytest.approx(by_expert[1], rel=1e-5)


def test_the_same_scores_route_the_same_way_every_time():
    moe, made = layer(2)
    hidden, scores = made.noise(16, 64), made.noise(16, 8)
    outputs = [moe.forward(hidden, scores.clone(), NoClock())[0] for _ in range(3)]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_hooks_mark_the_stages_that_its_own_timers_leave_out():
    moe, made = layer()
    clock = Marks()
    moe.forward(made.noise(3, 64), made.noise(3, 8), clock)
    assert clock.names == ["route.gate", "route.select", "permute", "experts", "combine", "layer", UNTIMED]


def test_a_shared_expert_is_added_and_timed_beside_it():
    moe, made = layer()
    with_shared, _ = layer(shared=lambda hidden: 2 * hidden)
    hidden, scores, clock = made.noise(3, 64), made.noise(3, 8), Marks()
    plain, _ = moe.forward(hidden, scores, NoClock())
    actual, _ = with_shared.forward(hidden, scores, clock)
    torch.testing.assert_close(actual, plain + 2 * hidden)
    assert [name for name in clock.names if name.startswith("experts")] == ["experts.routed", "experts.shared"]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"routing": {"capacity_factor": 1.0}}, "leave capacity_factor empty"),
        ({"fusion": "whole"}, "kernels.fusion can be none or gate_up, not 'whole'"),
        ({"model": "deepseek-v3"}, "deepseek-v3 scores its experts in another way"),
        ({"model": "llama-4-scout"}, "llama-4-scout scores its experts in another way"),
        ({"model": "olmoe-1b-7b"}, "always renormalises weights; olmoe-1b-7b does not renormalise"),
        ({"routing": {"top_k": 1}}, "leaves weights as they are for top_k 1; qwen3-30b-a3b does renormalise"),
        ({}, None),
        ({"model": "mixtral-8x7b"}, None),
    ],
)
def test_it_says_what_it_would_compute_differently(asked, reason):
    said = refusal(**asked)
    assert said is None if reason is None else said.startswith("kernels.experts: 'deepspeed_layer'") and reason in said
