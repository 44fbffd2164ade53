"""The weights and KV caches that a measurement holds: the executed layers, and what a step needs around them.

Variants of the same model, number of layers, dtype and seed share one `Network`, and in it the experts of each
quantization. Every expert's weights have a seed of their own: a rank makes those that it computes, and they are the
same wherever they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bench_worker.kernels.attention import Attention, build_attention, rms_norm
from bench_worker.kernels.base import DTYPES, ExpertSource, ExpertWeights
from bench_worker.kernels.quantized import QuantizedWeights, Rounded, quantize
from bench_worker.layer import DenseWeights, LayerWeights
from bench_worker.models import Model
from bench_worker.planning import NetworkKey
from bench_worker.weights import Weights

HeldExperts = ExpertWeights | QuantizedWeights


class Around:
    """What stands around the MoE layers of a step: embedding, attention of each executed layer, final norm and head."""

    def __init__(self, model: Model, layers: int, weights: Weights) -> None:
        self.embedding = weights.matrix(model.vocab, model.hidden)
        self.head = self.embedding if model.tied_embeddings else weights.matrix(model.vocab, model.hidden)
        self.final_norm = weights.ones(model.hidden)
        self.no_update = weights.noise(1).zero_()
        self.dense = dense_weights(model.hidden, model.dense_intermediate, weights) if model.dense_layers else None
        self.attention: list[dict[str, Attention]] = [build_attention(model, weights) for _ in range(layers)]
        #: The first token id of `embedding`'s rows; None where these are all of them.
        self.first_id: int | None = None

    def shard(self, member: int, members: int) -> Around:
        """The part of rank ``member`` of a tensor-parallel group of ``members``: its heads of attention, its part of
        the dense FFN, and its ⌈vocabulary / members⌉ rows of embedding and head, which are those of the whole. What
        the parts of attention, FFN and embedding make sums to what the whole does."""
        part = copy(self)
        part.embedding = _rows_of(self.embedding, member, members)
        part.head = part.embedding if self.head is self.embedding else _rows_of(self.head, member, members)
        part.first_id = member * len(part.embedding)
        if self.dense is not None:
            gate, up = (_rows_of(half, member, members) for half in self.dense.gate_up.chunk(2))
            down = _rows_of(self.dense.down.t(), member, members).t().contiguous()
            part.dense = DenseWeights(torch.cat((gate, up)), down)
        part.attention = [
            {stage: block.shard(member, members) for stage, block in kinds.items()} for kinds in self.attention
        ]
        return part

    def embed(self, token_ids: Tensor) -> Tensor:
        """[T, H]; of a part that holds some ids, zeros for the others."""
        if self.first_id is None:
            return F.embedding(token_ids, self.embedding)
        own = token_ids - self.first_id
        held = (own >= 0) & (own < len(self.embedding))
        return F.embedding(own.where(held, 0), self.embedding).mul_(held[:, None])

    def logits(self, hidden: Tensor, update: Tensor, yielding: Tensor) -> Tensor:
        """Logits [Y, vocab] of the rows that yield a token."""
        rows = hidden.index_select(0, yielding) + update.index_select(0, yielding)
        return F.linear(rms_norm(rows, self.final_norm), self.head)


class SeededExperts:
    """The experts of a layer, none of them held: each is made when it is asked for."""

    def __init__(self, network: Network, seed: int, layer: int) -> None:
        self._network, self._seed, self._layer = network, seed, layer

    def make(self, logical: Sequence[int], sign: Callable[[], None]) -> ExpertWeights:
        """The weights of ``logical``, in that order. ``sign`` is called after each."""
        model, device, dtype = self._network.model, self._network.device, self._network.dtype
        inner, hidden = model.expert_intermediate, model.hidden
        gate_up = torch.empty(len(logical), 2 * inner, hidden, dtype=dtype, device=device)
        down = torch.empty(len(logical), hidden, inner, dtype=dtype, device=device)
        for place, expert in enumerate(logical):
            weights = Weights(dtype, device, ((self._seed + 1) * 10_007 + self._layer) * 100_003 + expert)
            weights.fill(gate_up[place])
            weights.fill(down[place])
            sign()
        return ExpertWeights(gate_up, down)

    def of(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.make([expert], lambda: None).of(0)


class Network:
    """Executed MoE layers' weights, and `Around` where attention is measured. ``sign`` is called after each expert.

    ``members``: those of a tensor-parallel group whose part of `Around` is held; all of them where not given.
    ``around`` is the whole of it, None where it is divided among several.
    """

    def __init__(
        self,
        model: Model,
        key: NetworkKey,
        device: torch.device,
        sign: Callable[[], None] = lambda: None,
        members: Collection[int] | None = None,
    ) -> None:
        self.model = model
        self.dtype = DTYPES[key.dtype]
        self.device = device
        weights = Weights(self.dtype, device, key.seed)
        self._sign, self._whole_layers = sign, key.held == "layers"
        self._experts: dict[tuple[int, tuple[int, ...], str], HeldExperts] = {}
        self._seeded = [SeededExperts(self, key.seed, layer) for layer in range(key.layers)]
        #: Their experts are made whenever asked for: `experts` and `experts_of_rank` give those that are held.
        self.layers = [self._layer(weights, seeded, key.held) for seeded in self._seeded]
        self.has_attention = key.attention
        self.around: Around | None = None
        #: By member of a group: its part of what stands around the layers. The whole is that of the only member.
        self.parts: dict[int, Around] = {}
        if key.attention:
            whole = Around(model, key.layers, weights)
            if key.tp == 1:
                self.around, self.parts = whole, {0: whole}
            else:
                held = range(key.tp) if members is None else members
                self.parts = {member: whole.shard(member, key.tp) for member in held}

    def _layer(self, weights: Weights, seeded: SeededExperts, held: str) -> LayerWeights:
        model = self.model
        if held == "nothing":
            return LayerWeights(weights.matrix(0, model.hidden), seeded, None)
        shared = dense_weights(model.hidden, model.shared_intermediate, weights) if model.shared_intermediate else None
        return LayerWeights(weights.matrix(model.experts, model.hidden), seeded, shared)

    def experts(self, layer: int, quantization: str = "none") -> HeldExperts:
        """All experts of a layer, held in their dtype or quantized from the first time on, whoever asks."""
        return self._held(layer, self._all, quantization, lambda: self._made(layer, self._all, quantization))

    def experts_of_rank(self, layer: int, logical: Sequence[int], quantization: str = "none") -> HeldExperts:
        """These experts of a layer, as one rank holds them; whoever holds the same shares them."""
        logical = tuple(logical)

        def make() -> HeldExperts:
            if not self._whole_layers:
                return self._made(layer, logical, quantization)
            first, count = logical[0], len(logical)
            together = logical == tuple(range(first, first + count))
            chosen = slice(first, first + count) if together else torch.tensor(logical, device=self.device)
            return self.experts(layer, quantization).take(chosen)

        return self._held(layer, logical, quantization, make)

    def rounded(self, layer: int, quantization: str = "none") -> LayerWeights:
        """The weights of a layer as a reference reads them: with experts that are made, and rounded where they are
        quantized, one at a time, unless unrounded ones are held."""
        source = self._source(layer)
        experts = source if quantization == "none" else Rounded(source, quantization)
        return replace(self.layers[layer], experts=experts)

    @property
    def _all(self) -> tuple[int, ...]:
        return tuple(range(self.model.experts))

    def _source(self, layer: int) -> ExpertSource:
        held = self._experts.get((layer, self._all, "none"))
        return held if isinstance(held, ExpertWeights) else self._seeded[layer]

    def _held(
        self, layer: int, logical: tuple[int, ...], quantization: str, make: Callable[[], HeldExperts]
    ) -> HeldExperts:
        key = layer, logical, quantization
        if key not in self._experts:
            self._experts[key] = make()
        return self._experts[key]

    def _made(self, layer: int, logical: tuple[int, ...], quantization: str) -> HeldExperts:
        if quantization == "none":
            return self._seeded[layer].make(logical, self._sign)
        shape = self.model.hidden, self.model.expert_intermediate
        return quantize(self._source(layer), logical, shape, self.dtype, quantization, self._sign)

    def make_room(self, slots: int, length: int) -> None:
        """KV caches for ``slots`` requests of up to ``length`` tokens, replacing those of the condition before."""
        weights = Weights(self.dtype, self.device, seed=0)
        attentions = [a for part in self.parts.values() for kinds in part.attention for a in kinds.values()]
        for attention in attentions:  # free all before making any: two conditions' caches may not fit side by side
            attention.free_cache()
        for attention in attentions:
            attention.make_cache(slots, length, weights)


def _rows_of(matrix: Tensor, member: int, members: int) -> Tensor:
    """The member's part of rows [N, ·]: ⌈N / members⌉ of them, a view, or a copy that zeros fill up."""
    count = -(-len(matrix) // members)
    own = matrix[member * count : (member + 1) * count]
    return own if len(own) == count else F.pad(own, (0, 0, 0, count - len(own)))


def dense_weights(hidden: int, intermediate: int, weights: Weights) -> DenseWeights:
    return DenseWeights(weights.matrix(2 * intermediate, hidden), weights.matrix(hidden, intermediate))
