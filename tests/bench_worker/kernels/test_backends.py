"""Every way to compute the experts, against a float64 reference, for every way rows can fall on experts.

The weights of every test stay where they are or go, as Python pleases: a backend that remembers addresses has to keep
them alive itself.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bench_worker import checking, reference
from bench_worker.kernels import registry, rules, zentorch
from bench_worker.kernels.base import ExpertWeights
from bench_worker.kernels.deepspeed_layer import DeepSpeedLayer
from bench_worker.kernels.permute import RowBuffer
from bench_worker.kernels.quantized import Rounded, quantize
from bench_worker.layer import LayerWeights, MoELayer
from bench_worker.models import presets
from bench_worker.routing import build
from bench_worker.spec import Spec
from bench_worker.stages import NoClock
from bench_worker.weights import Weights

CPU = torch.device("cpu")
H, INTERMEDIATE, E = 256, 192, 8
MODEL = presets()["qwen3-30b-a3b"]
SPEC = Spec.model_validate({"model": MODEL.name})

needs_zentorch = pytest.mark.skipif(bool(zentorch.missing(CPU)), reason=f"zentorch: {zentorch.missing(CPU)}")
TIGHT = [
    ("deepspeed", "none"),
    ("deepspeed", "gate_up"),
    ("loop", "none"),
    ("loop", "gate_up"),
    ("padded", "none"),
    ("padded", "gate_up"),
    ("deepspeed_layer", "none"),
    ("deepspeed_layer", "gate_up"),
    *(pytest.param("zentorch", fusion, marks=needs_zentorch) for fusion in rules.FUSIONS),
]
QUANTIZED = [
    ("loop", "gate_up", "int8"),
    ("loop", "gate_up", "int4"),
    *(pytest.param("zentorch", fusion, "int8", marks=needs_zentorch) for fusion in rules.FUSIONS),
]


def uniform(tokens):
    return torch.arange(tokens) % E


def skewed(tokens):
    """About half of the rest to each next expert."""
    return torch.bucketize(torch.arange(tokens) / tokens, 1 - 0.5 ** torch.arange(1.0, E))


def one_has_half(tokens):
    return torch.where(torch.arange(tokens) < (tokens + 1) // 2, 3, torch.arange(tokens) % E)


def one_has_all(tokens):
    return torch.full((tokens,), 5)


def some_have_none(tokens):
    return torch.tensor([1, 6, 7])[torch.arange(tokens) % 3]


def layer_of(name, fusion, weights, activation="swiglu", top_k=1, quantization="none"):
    """The layer, and the experts whose outputs it should have."""
    gate = weights.matrix(E, H)
    inner = 128 if quantization == "int4" else INTERMEDIATE  # which divides into groups
    experts = ExpertWeights(weights.matrix(E, 2 * inner, H), weights.matrix(E, H, inner))
    model = MODEL.model_copy(update={"expert_activation": activation})
    layer = LayerWeights(gate, experts, None)
    if name == "deepspeed_layer":
        return DeepSpeedLayer(gate, experts, None, activation, fusion, top_k), experts
    router = build("token_choice", E, top_k=top_k, renormalize=top_k > 1)
    buffer = RowBuffer(H, weights.dtype, CPU)
    held = experts
    if quantization != "none":
        held = quantize(experts, range(E), (H, inner), weights.dtype, quantization)
        experts = Rounded(experts, quantization)
    return MoELayer(layer, router, registry.build(name, fusion, held, SPEC, model), buffer, False), experts


def scores_for(expert, generator):
    """Scores that send token t to ``expert[t]`` first, with a weight of about a half."""
    scores = torch.rand(len(expert), E, generator=generator)
    return scores.scatter_add(1, expert[:, None], torch.full((len(expert), 1), 2.5))


def expected(hidden, scores, experts, top_k, activation="swiglu"):
    """Σ weight · expert(x) over the top-k, expert by expert in float64."""
    probability = scores.double().softmax(dim=-1)
    weight, chosen = probability.topk(top_k)
    if top_k > 1:
        weight = weight / weight.sum(dim=-1, keepdim=True)
    out = torch.zeros(hidden.shape, dtype=torch.float64)
    for expert in range(E):
        token, place = (chosen == expert).nonzero(as_tuple=True)
        x = hidden[token].double()
        gate, up, down = (matrix.double() for matrix in experts.of(expert))
        y = reference.activate(x @ gate.T, x @ up.T, activation) @ down.T
        out.index_add_(0, token, weight[token, place][:, None] * y)
    return out


def poison(layer):
    """Whatever the layer keeps for its rows holds NaN before the call."""
    if isinstance(layer, MoELayer):
        layer.buffer.take(4096)
        layer.buffer.poison()


@pytest.mark.parametrize("tokens", [1, 2, 7, 64, 513])
@pytest.mark.parametrize("load", [uniform, skewed, one_has_half, one_has_all, some_have_none])
@pytest.mark.parametrize(("name", "fusion"), TIGHT)
def test_it_equals_the_float64_reference_with_fresh_weights_each_time(name, fusion, load, tokens):
    for seed in range(3):
        weights = Weights(torch.bfloat16, CPU, seed=seed * 1000 + tokens)
        layer, experts = layer_of(name, fusion, weights)
        hidden = weights.noise(tokens, H)
        scores = scores_for(load(tokens), torch.Generator().manual_seed(seed))
        poison(layer)
        actual, assigned = layer.forward(hidden, scores, NoClock())
        assert assigned.expert.tolist() == load(tokens).tolist()
        assert reference.relative_error(actual, expected(hidden, scores, experts, 1)) < 1e-2


@pytest.mark.parametrize("tokens", [1, 2, 7, 64, 513])
@pytest.mark.parametrize("load", [uniform, skewed, one_has_half, one_has_all, some_have_none])
@pytest.mark.parametrize(("name", "fusion", "quantization"), QUANTIZED)
def test_quantized_it_equals_the_reference_with_the_rounded_weights(name, fusion, quantization, load, tokens):
    for seed in range(3):
        weights = Weights(torch.bfloat16, CPU, seed=seed * 1000 + tokens)
        layer, experts = layer_of(name, fusion, weights, quantization=quantization)
        hidden = weights.noise(tokens, H)
        scores = scores_for(load(tokens), torch.Generator().manual_seed(seed))
        poison(layer)
        actual, _ = layer.forward(hidden, scores, NoClock())
        tolerance = checking.ROUNDED_ROWS_TOLERANCE if layer.experts.rows_format else 1e-2
        assert reference.relative_error(actual, expected(hidden, scores, experts, 1)) < tolerance


@pytest.mark.parametrize("activation", ["swiglu", "swiglu_oai"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("top_k", [2, 4])
@pytest.mark.parametrize(("name", "fusion"), TIGHT)
def test_several_experts_a_token_are_weighted_and_summed(name, fusion, top_k, dtype, tolerance, activation):
    if fusion == "whole" and activation != "swiglu":
        pytest.skip("zentorch computes SwiGLU only in one call, and says so")
    weights = Weights(dtype, CPU, seed=top_k)
    layer, experts = layer_of(name, fusion, weights, activation, top_k)
    hidden, scores = weights.noise(37, H), Weights(torch.float32, CPU, 9).noise(37, E)
    poison(layer)
    actual, _ = layer.forward(hidden, scores, NoClock())
    wanted = expected(hidden, scores, experts, top_k, activation)
    assert reference.relative_error(actual, wanted) < tolerance


@pytest.mark.parametrize(("name", "fusion"), TIGHT)
def test_a_large_step_leaves_nothing_behind_for_a_small_one(name, fusion):
    weights = Weights(torch.bfloat16, CPU, seed=1)
    layer, experts = layer_of(name, fusion, weights)
    generator = torch.Generator().manual_seed(0)
    for tokens in (200, 3):
        hidden, scores = weights.noise(tokens, H), scores_for(uniform(tokens), generator)
        actual, _ = layer.forward(hidden, scores, NoClock())
    assert reference.relative_error(actual, expected(hidden, scores, experts, 1)) < 1e-2


@pytest.mark.parametrize(
    ("name", "counts", "rows"),
    [
        ("deepspeed", [5, 0, 2, 1], 8),
        ("loop", [5, 0, 2, 1], 8),
        ("padded", [5, 0, 2, 1], 20),
        ("deepspeed_layer", [5, 0, 2, 1, 0, 0, 0, 0], 40),
    ],
)
def test_it_reports_the_rows_that_it_computes(name, counts, rows):
    layer, _ = layer_of(name, "gate_up", Weights(torch.float32, CPU, 0))
    assert layer.computed_rows(np.array(counts), num_tokens=8) == rows


@pytest.mark.parametrize("name", ["deepspeed", "loop", "padded"])
def test_no_rows_at_all_give_no_rows(name):
    weights = Weights(torch.float32, CPU, 0)
    experts = ExpertWeights(weights.matrix(E, 2 * INTERMEDIATE, H), weights.matrix(E, H, INTERMEDIATE))
    backend = registry.build(name, "gate_up", experts, SPEC, MODEL)
    assert backend(torch.empty(0, H), torch.zeros(E, dtype=torch.int64)).shape == (0, H)
