"""One variant, ready to run steps: a network with its router and expert backend.

Shapes: ``T`` tokens of the step, ``H`` hidden, ``E`` experts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from bench_worker import capacity, environment, strategies
from bench_worker.capacity import CHECK_TOKENS
from bench_worker.checking import COMPARED_TOKENS, Errors, Given, check, errors
from bench_worker.errors import Unavailable
from bench_worker.interleave import Layer, LayerInput
from bench_worker.kernels import registry, rules
from bench_worker.kernels.auto import Auto
from bench_worker.kernels.base import Experts, ExpertWeights
from bench_worker.kernels.deepspeed_layer import DeepSpeedLayer
from bench_worker.kernels.permute import RowBuffer
from bench_worker.layer import LayerWeights, MoELayer, dense
from bench_worker.network import HeldExperts, Network
from bench_worker.outcome import Outcome
from bench_worker.result import Check
from bench_worker.routing import Assignments, SoftSlots
from bench_worker.spec import Spec
from bench_worker.stages import Clock, StageClock
from bench_worker.step_input import StepInput, StepSource
from bench_worker.step_layout import one_request
from bench_worker.tally import tally
from bench_worker.variant_base import VariantBase
from bench_worker.weights import Weights
from bench_worker.workload.recordings import Recording


class Variant(VariantBase):
    """Runs whole steps of one configuration. Raises `Unavailable` where a part can't run on the network's device."""

    def __init__(self, spec: Spec, network: Network) -> None:
        if reason := registry.refusal(spec, network.device):
            raise Unavailable(reason)
        super().__init__(spec, network)
        self.buffer = RowBuffer(network.model.hidden, network.dtype, network.device)
        #: The fusion of each backend that may run the experts.
        self.fusions: dict[str, str] = {spec.kernels.experts: spec.kernels.fusion}
        if spec.kernels.experts == "auto":
            self.fusions, self.refused = _candidates(spec, network)
        self.layers: list[Layer] = [self._layer(place) for place in range(len(network.layers))]

    def _layer(self, place: int) -> Layer:
        weights = self.network.layers[place]
        experts = self.network.experts(place, self.spec.kernels.quantization)
        if self.spec.kernels.experts != "deepspeed_layer":
            return self._moe_layer(weights, self._experts(experts))
        assert isinstance(experts, ExpertWeights), "the rules refuse quantized ones"
        shared = weights.shared
        return DeepSpeedLayer(
            weights.gate,
            experts,
            None if shared is None else lambda hidden: dense(hidden, shared),
            self.network.model.expert_activation,
            self.spec.kernels.fusion,
            self.params["top_k"],
        )

    def _moe_layer(self, weights: LayerWeights, experts: Experts) -> MoELayer:
        return MoELayer(weights, self.router, experts, self.buffer, self.network.model.weight_on_input)

    def _experts(self, weights: HeldExperts) -> Experts:
        built = {
            name: registry.build(name, fusion, weights, self.spec, self.network.model)
            for name, fusion in self.fusions.items()
        }
        return Auto(built, self.choices) if self.spec.kernels.experts == "auto" else built[self.spec.kernels.experts]

    def alternatives(self) -> dict[str, Layer]:
        """The first layer with each backend that may run it, by name."""
        first = self.layers[0]
        if not isinstance(first, MoELayer):
            return {self.spec.kernels.experts: first}
        each = zip(self.fusions, first.experts.each(), strict=True)
        return {name: self._moe_layer(first.weights, backend) for name, backend in each}

    def warm(self) -> None:
        """Pack weights and make kernels now, not in the first steps."""
        for layer in self.layers:
            for backend in layer.experts.each() if isinstance(layer, MoELayer) else []:
                backend.warm()

    def outcome(self, inputs: StepInput, routed: list[Assignments | SoftSlots]) -> Outcome:
        """What came of ``routed``, which `step` made of ``inputs``."""
        return tally(routed, inputs.scores, inputs.token_ids, self.network.model.experts, self.own_router)

    def check(self) -> Check:
        """The first layer against the float64 reference, with its reused buffer poisoned first; where there are several
        backends to choose from, the worst of them."""
        model, network = self.network.model, self.network
        weights = Weights(network.dtype, network.device, seed=1)
        hidden = weights.noise(CHECK_TOKENS, model.hidden)
        scores = Weights(torch.float32, network.device, seed=2).noise(CHECK_TOKENS, model.experts)
        token_ids = torch.arange(CHECK_TOKENS, device=network.device) % model.vocab
        compared = list(range(0, CHECK_TOKENS, CHECK_TOKENS // COMPARED_TOKENS))
        self.reserve(CHECK_TOKENS)
        found: list[tuple[Errors, str | None]] = []
        for layer in self.alternatives().values():
            self.buffer.poison()
            actual, routed = layer.forward(hidden, scores, StageClock(network.device), token_ids)
            given = Given(hidden, scores, token_ids)
            rounds = layer.experts.at(CHECK_TOKENS).rows_format if isinstance(layer, MoELayer) else None
            found.append((errors(network, self.spec, self.router, given, actual, routed, compared), rounds))
        return check(found, self.spec, COMPARED_TOKENS)

    def chosen(self, tokens: int) -> str | None:
        """The backend that ``auto`` runs steps of ``tokens`` on; None where the experts name one."""
        first = self.layers[0]
        if not (isinstance(first, MoELayer) and isinstance(first.experts, Auto)):
            return None
        return first.experts.chosen(tokens)

    def counts(self, given: LayerInput) -> np.ndarray:
        """Rows int64 [E] that each expert gets from ``given``."""
        routed = [self.router.select(given.scores, given.token_ids)]
        return tally(routed, [given.scores], given.token_ids, self.network.model.experts, None).rows[0]

    def sample(self, tokens: int, seed: int, recordings: Mapping[str, Recording] | None = None) -> LayerInput:
        """What a layer gets in a step of ``tokens`` under the spec's load."""
        network = self.network
        hidden = Weights(network.dtype, network.device, seed).noise(tokens, network.model.hidden)
        made = StepSource(seed, recordings=recordings).make(
            network, self.spec.load, 0, one_request(tokens, network.device)
        )
        self.reserve(tokens)
        return LayerInput(hidden, self.router.checked(made.scores[0], made.token_ids), made.token_ids)

    def reserve(self, tokens: int) -> None:
        """Room for the rows of a step of ``tokens``, and what its selection needs, so that no step has to make it."""
        network = self.network
        rows = strategies.routed_rows(self.spec.routing.strategy, self.params, tokens, network.model.experts)
        self.buffer.take(rows)
        self.router.prepare(tokens, network.device)

    def computed_rows(self, counts: np.ndarray, tokens: int) -> int:
        """Rows that the experts of all layers compute in a step, padding included; ``counts`` [layers, E] are real."""
        pairs = zip(self.layers, counts, strict=True)
        return sum(layer.computed_rows(own, tokens) for layer, own in pairs)

    def step(self, inputs: StepInput, clock: Clock) -> list[Assignments | SoftSlots]:
        """One step through the executed layers, with the attention, embedding and head around them where they are
        measured. Marks ``clock`` and returns who went where in each layer."""
        around, token_ids = self.network.around, inputs.token_ids
        scores = [self.router.checked(layer_scores, token_ids) for layer_scores in inputs.scores]
        clock.begin()
        routed: list[Assignments | SoftSlots] = []
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


def _candidates(spec: Spec, network: Network) -> tuple[dict[str, str], dict[str, str]]:
    """As `registry.candidates`, without a backend whose packed weights don't fit beside the others'."""
    found, refused = registry.candidates(spec, network.device)
    packed = capacity.packed_bytes(rules.with_kernels(spec, experts="zentorch"))
    free = environment.available_bytes(network.device)
    if len(found) > 1 and "zentorch" in found and packed > free:
        del found["zentorch"]
        refused["zentorch"] = f"its packed weights take {packed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free"
    return found, refused
