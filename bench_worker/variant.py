"""One variant, ready to run steps: a network with its router and expert backend.

Shapes: ``T`` tokens of the step, ``H`` hidden, ``E`` experts.
"""

from __future__ import annotations

from typing import Any

import torch

from bench_worker import reference, routing
from bench_worker.errors import Unavailable
from bench_worker.kernels.permute import RowBuffer
from bench_worker.kernels.registry import EXPERT_BACKENDS
from bench_worker.layer import MoELayer, dense
from bench_worker.models import Model
from bench_worker.network import Network
from bench_worker.result import Check
from bench_worker.routing import Assignments
from bench_worker.spec import Spec
from bench_worker.stages import Clock, StageClock
from bench_worker.step_input import StepInput
from bench_worker.weights import Weights

#: Largest error against the float64 reference that a variant may show, by dtype.
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
#: Tokens of the checked batch, enough for the kernels of large batches, and how many of them are compared.
CHECK_TOKENS, COMPARED_TOKENS = 256, 8


class Variant:
    """Runs whole steps of one configuration. Raises `Unavailable` where a part can't run on the network's device."""

    def __init__(self, spec: Spec, network: Network) -> None:
        backend = EXPERT_BACKENDS[spec.kernels.experts]
        if reason := backend.supports(spec, network.device):
            raise Unavailable(reason)
        model = network.model
        self.spec, self.network = spec, network
        self.params = routing_params(spec, model)
        self.router = routing.build(spec.routing.strategy, model.experts, **self.params)
        self.buffer = RowBuffer(model.hidden, network.dtype, network.device)
        self.layers = [
            MoELayer(
                weights,
                self.router,
                backend(weights.experts, model.expert_activation, spec.kernels.fusion),
                self.buffer,
                model.weight_on_input,
            )
            for weights in network.layers
        ]

    def check(self) -> Check:
        """The first layer against the float64 reference, with its reused buffer poisoned first."""
        model, network = self.network.model, self.network
        weights = Weights(network.dtype, network.device, seed=1)
        hidden = weights.noise(CHECK_TOKENS, model.hidden)
        scores = Weights(torch.float32, network.device, seed=2).noise(CHECK_TOKENS, model.experts)
        self.reserve(CHECK_TOKENS)
        self.buffer.poison()
        actual, _ = self.layers[0].forward(hidden, scores, StageClock(network.device))
        choices = reference.ROUTERS[self.spec.routing.strategy](scores.tolist(), **self.params)
        compared = list(range(0, CHECK_TOKENS, CHECK_TOKENS // COMPARED_TOKENS))
        expected = reference.layer(
            hidden, network.layers[0], choices, model.expert_activation, model.weight_on_input, tokens=compared
        )
        error = reference.relative_error(actual[compared], expected)
        return Check(rel_error=error, tolerance=TOLERANCES[self.spec.kernels.dtype], tokens=COMPARED_TOKENS)

    def reserve(self, tokens: int) -> None:
        """Room for the rows of a step of ``tokens``, so that no step has to make it."""
        self.buffer.take(tokens * self.params["top_k"])

    def step(self, inputs: StepInput, clock: Clock) -> list[Assignments]:
        """One step through the executed layers, with the attention, embedding and head around them where they are
        measured. Marks ``clock`` and returns each layer's assignments."""
        around = self.network.around
        clock.begin()
        if around is None:
            routed = []
            for layer, layer_scores in zip(self.layers, inputs.scores, strict=True):
                _, assignments = layer.forward(inputs.hidden, layer_scores, clock)
                routed.append(assignments)
            return routed

        hidden, update = around.embed(inputs.token_ids), around.no_update
        clock.outer("other.embedding")
        if around.dense is not None:
            update = dense(hidden, around.dense)
            clock.outer("other.dense_ffn")
        routed = []
        for layer, blocks, layer_scores in zip(self.layers, around.attention, inputs.scores, strict=True):
            for stage, block in blocks.items():
                hidden, normed = block.forward(hidden, update, inputs.layout)
                update = around.no_update
                clock.outer(stage)
            update, assignments = layer.forward(normed, layer_scores, clock)
            routed.append(assignments)
        around.logits(hidden, update, inputs.layout.yielding)
        clock.outer("other.head")
        return routed


def routing_params(spec: Spec, model: Model) -> dict[str, Any]:
    """The strategy's parameters: what the spec sets, else what the model does."""
    asked = spec.routing
    return {
        "top_k": asked.top_k or model.top_k,
        "scoring": "sigmoid" if model.scoring == "sigmoid" else "softmax",
        "renormalize": model.renormalize,
        "route_scale": model.route_scale,
        "capacity_factor": asked.capacity_factor,
    }
