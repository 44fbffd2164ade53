"""The weights and KV caches that a measurement holds: the executed layers, and what a step needs around them.

Variants of the same model, number of layers, dtype and seed share one `Network`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bench_worker.kernels.attention import Attention, build_attention, rms_norm
from bench_worker.kernels.base import DTYPES, ExpertWeights
from bench_worker.layer import DenseWeights, LayerWeights
from bench_worker.models import Model
from bench_worker.planning import NetworkKey
from bench_worker.weights import Weights


class Around:
    """What stands around the MoE layers of a step: embedding, attention of each executed layer, final norm and head."""

    def __init__(self, model: Model, layers: int, weights: Weights) -> None:
        self.embedding = weights.matrix(model.vocab, model.hidden)
        self.head = self.embedding if model.tied_embeddings else weights.matrix(model.vocab, model.hidden)
        self.final_norm = weights.ones(model.hidden)
        self.no_update = weights.noise(1).zero_()
        self.dense = dense_weights(model.hidden, model.dense_intermediate, weights) if model.dense_layers else None
        self.attention: list[dict[str, Attention]] = [build_attention(model, weights) for _ in range(layers)]

    def embed(self, token_ids: Tensor) -> Tensor:
        return F.embedding(token_ids, self.embedding)

    def logits(self, hidden: Tensor, update: Tensor, yielding: Tensor) -> Tensor:
        """Logits [Y, vocab] of the rows that yield a token."""
        rows = hidden.index_select(0, yielding) + update.index_select(0, yielding)
        return F.linear(rms_norm(rows, self.final_norm), self.head)


class Network:
    """Executed MoE layers' weights, and `Around` where attention is measured."""

    def __init__(self, model: Model, key: NetworkKey, device: torch.device) -> None:
        self.model = model
        self.dtype = DTYPES[key.dtype]
        self.device = device
        weights = Weights(self.dtype, device, key.seed)
        self.layers = [layer_weights(model, weights) for _ in range(key.layers)]
        self.around = Around(model, key.layers, weights) if key.attention else None

    def make_room(self, slots: int, length: int) -> None:
        """KV caches for ``slots`` requests of up to ``length`` tokens, replacing those of the condition before."""
        if self.around is None:
            return
        weights = Weights(self.dtype, self.device, seed=0)
        attentions = [a for kinds in self.around.attention for a in kinds.values()]
        for attention in attentions:  # free all before making any: two conditions' caches may not fit side by side
            attention.free_cache()
        for attention in attentions:
            attention.make_cache(slots, length, weights)


def dense_weights(hidden: int, intermediate: int, weights: Weights) -> DenseWeights:
    return DenseWeights(weights.matrix(2 * intermediate, hidden), weights.matrix(hidden, intermediate))


def layer_weights(model: Model, weights: Weights) -> LayerWeights:
    experts = ExpertWeights(
        gate_up=weights.matrix(model.experts, 2 * model.expert_intermediate, model.hidden),
        down=weights.matrix(model.experts, model.hidden, model.expert_intermediate),
    )
    shared = dense_weights(model.hidden, model.shared_intermediate, weights) if model.shared_intermediate else None
    return LayerWeights(weights.matrix(model.experts, model.hidden), experts, shared)
