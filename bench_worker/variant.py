"""One variant, ready to run steps: a network with its router and expert backend.

Shapes: ``T`` tokens of the step, ``H`` hidden, ``E`` experts.
"""

from __future__ import annotations

import math

import torch

from bench_worker import reference, routing, strategies
from bench_worker.errors import Unavailable
from bench_worker.kernels.permute import RowBuffer
from bench_worker.kernels.registry import EXPERT_BACKENDS
from bench_worker.layer import MoELayer, dense
from bench_worker.network import Network
from bench_worker.outcome import Outcome
from bench_worker.result import Check
from bench_worker.routing import Assignments, Router, SoftSlots
from bench_worker.routing.reference import Wrong, expected
from bench_worker.spec import Spec
from bench_worker.stages import Clock, StageClock
from bench_worker.step_input import StepInput
from bench_worker.tally import tally
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
        self.params = strategies.parameters(spec.routing, model, spec.workload.seed)
        self.router = routing.build(spec.routing.strategy, model.experts, **self.params)
        self.own_router = self._own_router()
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

    def _own_router(self) -> Router | None:
        """The router that the model was trained with; None where the variant's chooses the same experts."""
        model = self.network.model
        own = strategies.own_routing(model)
        params = strategies.parameters(own, model, self.spec.workload.seed)
        if own.strategy == self.spec.routing.strategy and params == self.params:
            return None
        return routing.build(own.strategy, model.experts, **params)

    def outcome(self, inputs: StepInput, routed: list[Assignments | SoftSlots]) -> Outcome:
        """What came of ``routed``, which `step` made of ``inputs``."""
        return tally(routed, inputs.scores, inputs.token_ids, self.network.model.experts, self.own_router)

    def check(self) -> Check:
        """The first layer against the float64 reference, with its reused buffer poisoned first."""
        model, network = self.network.model, self.network
        weights = Weights(network.dtype, network.device, seed=1)
        hidden = weights.noise(CHECK_TOKENS, model.hidden)
        scores = Weights(torch.float32, network.device, seed=2).noise(CHECK_TOKENS, model.experts)
        token_ids = torch.arange(CHECK_TOKENS, device=network.device) % model.vocab
        self.reserve(CHECK_TOKENS)
        self.buffer.poison()
        actual, routed = self.layers[0].forward(hidden, scores, StageClock(network.device), token_ids)
        compared = list(range(0, CHECK_TOKENS, CHECK_TOKENS // COMPARED_TOKENS))
        try:
            choices = expected(self.router, scores, token_ids, routed)
        except Wrong:
            error = math.inf
        else:
            correct = reference.layer(
                hidden, network.layers[0], choices, model.expert_activation, model.weight_on_input, tokens=compared
            )
            error = reference.relative_error(actual[compared], correct)
        return Check(rel_error=error, tolerance=TOLERANCES[self.spec.kernels.dtype], tokens=COMPARED_TOKENS)

    def reserve(self, tokens: int) -> None:
        """Room for the rows of a step of ``tokens``, and what its selection needs, so that no step has to make it."""
        network = self.network
        rows = strategies.routed_rows(self.spec.routing.strategy, self.params, tokens, network.model.experts)
        self.buffer.take(rows)
        self.router.prepare(tokens, network.device)

    def step(self, inputs: StepInput, clock: Clock) -> list[Assignments | SoftSlots]:
        """One step through the executed layers, with the attention, embedding and head around them where they are
        measured. Marks ``clock`` and returns who went where in each layer."""
        around, token_ids = self.network.around, inputs.token_ids
        scores = [self.router.checked(layer_scores, token_ids) for layer_scores in inputs.scores]
        clock.begin()
        routed = []
        if around is None:
            for layer, layer_scores in zip(self.layers, scores, strict=True):
                routed.append(layer.forward(inputs.hidden, layer_scores, clock, token_ids)[1])
            return routed

        hidden, update = around.embed(token_ids), around.no_update
        clock.outer("other.embedding")
        if around.dense is not None:
            update = dense(hidden, around.dense)
            clock.outer("other.dense_ffn")
        for layer, blocks, layer_scores in zip(self.layers, around.attention, scores, strict=True):
            for stage, block in blocks.items():
                hidden, normed = block.forward(hidden, update, inputs.layout)
                update = around.no_update
                clock.outer(stage)
            update, layer_routed = layer.forward(normed, layer_scores, clock, token_ids)
            routed.append(layer_routed)
        around.logits(hidden, update, inputs.layout.yielding)
        clock.outer("other.head")
        return routed
