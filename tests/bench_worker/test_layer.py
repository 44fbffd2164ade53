"""The MoE layer against a plain float64 loop over tokens."""

import pytest
import torch

from bench_worker import reference
from bench_worker.kernels.base import ExpertWeights
from bench_worker.kernels.deepspeed_grouped import DeepSpeedGrouped
from bench_worker.kernels.permute import RowBuffer
from bench_worker.layer import DenseWeights, LayerWeights, MoELayer, dense
from bench_worker.routing import ROUTERS, build
from bench_worker.routing.reference import expected as expected_routing
from bench_worker.routing.reference import token_choice
from bench_worker.stages import StageClock
from bench_worker.weights import Weights

CPU = torch.device("cpu")
H, INTERMEDIATE, E, D = 64, 32, 8, 48


def loop_over_tokens(hidden, layer, scores, top_k, activation, weight_on_input):
    """Σ over a token's chosen experts of weight · down(act(gate x, up x)), one token and expert at a time."""
    out = torch.zeros(hidden.shape, dtype=torch.float64)
    for token, row in enumerate(hidden.double()):
        probability = torch.softmax(scores[token].double(), 0)
        chosen = probability.topk(top_k).indices.tolist()
        total = sum(float(probability[e]) for e in chosen)
        for expert in chosen:
            weight = float(probability[expert]) / total
            x = row * weight if weight_on_input else row
            gate, up = layer.experts.gate[expert].double() @ x, layer.experts.up[expert].double() @ x
            if activation == "swiglu":
                inner = gate / (1 + torch.exp(-gate)) * up
            else:
                gate, up = torch.clamp(gate, max=7), torch.clamp(up, -7, 7)
                inner = (up + 1) * gate / (1 + torch.exp(-1.702 * gate))
            y = layer.experts.down[expert].double() @ inner
            out[token] += y if weight_on_input else weight * y
        if layer.shared is not None:
            gate, up = (layer.shared.gate_up.double() @ row).chunk(2)
            out[token] += layer.shared.down.double() @ (gate / (1 + torch.exp(-gate)) * up)
    return out


def make(dtype, shared=False, activation="swiglu", weight_on_input=False, seed=0, router=None):
    weights = Weights(dtype, CPU, seed)
    experts = ExpertWeights(weights.matrix(E, 2 * INTERMEDIATE, H), weights.matrix(E, H, INTERMEDIATE))
    side = DenseWeights(weights.matrix(2 * D, H), weights.matrix(H, D)) if shared else None
    layer = LayerWeights(weights.matrix(E, H), experts, side)
    buffer = RowBuffer(H, dtype, CPU)
    router = router or build("token_choice", E, top_k=2)
    moe = MoELayer(layer, router, DeepSpeedGrouped(experts, activation, "gate_up"), buffer, weight_on_input)
    return moe, weights


@pytest.mark.parametrize("tokens", [1, 2, 7, 64])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("weight_on_input", [False, True])
def test_it_equals_a_float64_loop_over_tokens(tokens, dtype, tolerance, shared, weight_on_input):
    moe, weights = make(dtype, shared=shared, weight_on_input=weight_on_input, seed=tokens)
    hidden = weights.noise(tokens, H)
    scores = Weights(torch.float32, CPU, 9).noise(tokens, E)
    moe.buffer.take(tokens * E)
    moe.buffer.poison()
    actual, _ = moe.forward(hidden, scores, StageClock(CPU))
    expected = loop_over_tokens(hidden, moe.weights, scores, 2, "swiglu", weight_on_input)
    # One bound for the batch: at these small widths a single token's few products leave bf16 no room to average out.
    assert float((actual.double() - expected).norm() / expected.norm()) < tolerance


@pytest.mark.parametrize("tokens", [1, 3, 64])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("strategy", ROUTERS)
def test_every_strategy_equals_its_reference_in_float64(strategy, dtype, tolerance, tokens):
    router = build(strategy, E, top_k=2)
    moe, weights = make(dtype, shared=True, seed=tokens, router=router)
    hidden, ids = weights.noise(tokens, H), torch.arange(tokens)
    scores = Weights(torch.float32, CPU, 9).noise(tokens, E)
    moe.buffer.take(tokens * E)
    moe.buffer.poison()
    actual, routed = moe.forward(hidden, scores, StageClock(CPU), ids)
    correct = reference.layer(hidden, moe.weights, expected_routing(router, scores, ids, routed), "swiglu")
    assert float((actual.double() - correct).norm() / correct.norm()) < tolerance


def slot_by_slot(hidden, layer, slots):
    """Soft MoE by its formula: Σ over slots of a token's share · down(silu(gate x) · up x), x a mix of tokens."""
    out = torch.zeros(hidden.shape, dtype=torch.float64)
    per_expert = slots.dispatch.shape[1] // E
    for column in range(slots.dispatch.shape[1]):
        x = (slots.dispatch[:, column].double()[:, None] * hidden.double()).sum(dim=0)
        experts, expert = layer.experts, column // per_expert
        gate, up = experts.gate[expert].double() @ x, experts.up[expert].double() @ x
        y = experts.down[expert].double() @ (gate / (1 + torch.exp(-gate)) * up)
        out += slots.combine[:, column].double()[:, None] * y
    return out


def test_soft_slots_equal_a_loop_over_slots():
    router = build("soft", E, slots_per_expert=3)
    moe, weights = make(torch.float32, router=router)
    hidden, scores = weights.noise(5, H), weights.noise(5, E)
    actual, slots = moe.forward(hidden, scores, StageClock(CPU))
    correct = slot_by_slot(hidden, moe.weights, slots)
    torch.testing.assert_close(actual.double(), correct, rtol=1e-4, atol=1e-5)
    of_two = reference.layer(hidden, moe.weights, slots, "swiglu", tokens=[1, 4])
    torch.testing.assert_close(of_two, correct[[1, 4]], rtol=1e-5, atol=1e-8)


def test_a_token_that_no_expert_picks_gets_nothing():
    # Half of the experts are surest of token 0 and half of token 1; token 2 is nobody's best.
    moe, weights = make(torch.float32, router=build("expert_choice", E, top_k=1))
    likes = torch.tensor([0.4] * (E // 2) + [0.0] * (E // 2))
    scores = torch.stack([likes, likes.flip(0), torch.zeros(E)])
    actual, routed = moe.forward(weights.noise(3, H), scores, StageClock(CPU))
    assert set(routed.token.tolist()) == {0, 1}
    assert actual[:2].abs().sum(dim=1).min() > 0
    assert actual[2].abs().max() == 0


def test_the_products_reference_equals_the_loop():
    moe, weights = make(torch.float32, shared=True, activation="swiglu_oai")
    hidden, scores = weights.noise(5, H), weights.noise(5, E)
    choices = token_choice(scores.double().tolist(), top_k=2)
    actual = reference.layer(hidden, moe.weights, choices, "swiglu_oai")
    torch.testing.assert_close(actual, loop_over_tokens(hidden, moe.weights, scores, 2, "swiglu_oai", False))


def test_one_steps_rows_do_not_leak_into_the_next():
    moe, weights = make(torch.float32)
    large, small = weights.noise(32, H), weights.noise(3, H)
    scores = weights.noise(32, E)
    moe.forward(large, scores, StageClock(CPU))
    after, _ = moe.forward(small, scores[:3], StageClock(CPU))
    fresh, _ = make(torch.float32)[0].forward(small, scores[:3], StageClock(CPU))
    assert torch.equal(after, fresh)


def test_it_marks_its_stages_in_order_and_then_the_layer():
    class Marks(StageClock):
        def inner(self, name):
            marks.append(name)

        outer = inner

    marks: list[str] = []
    moe, weights = make(torch.float32, shared=True)
    moe.forward(weights.noise(2, H), weights.noise(2, E), Marks(CPU))
    assert marks == ["route.gate", "route.select", "permute", "experts.routed", "experts.shared", "combine", "layer"]


def test_dense_is_a_gated_feed_forward():
    weights = DenseWeights(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]]))  # gate 1·x, up 2·x, down 3·
    x = torch.tensor([[0.5]])
    silu = 0.5 / (1 + torch.exp(torch.tensor(-0.5)))
    torch.testing.assert_close(dense(x, weights), (3 * silu * 1.0).view(1, 1))


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="'relu' is not one of swiglu, swiglu_oai"):
        reference.activate(torch.ones(1), torch.ones(1), "relu")


def test_a_nan_in_the_output_is_an_infinite_error():
    assert reference.relative_error(torch.tensor([[1.0, torch.nan]]), torch.ones(1, 2).double()) == float("inf")


def test_one_wrong_row_is_not_averaged_away():
    expected = torch.ones(100, 4).double()
    actual = expected.clone()
    actual[17] = 0
    assert reference.relative_error(actual, expected) == pytest.approx(1.0)
