"""The weights and KV caches that a measurement holds: the executed layers, and what a step needs around them.

Variants of the same model, number of layers, dtype and seed share one `Network`. Every expert's weights have a seed of
their own: a rank makes those that it computes, and they are the same wherever they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from bench_worker.kernels.attention import Attention, build_attention, rms_norm
from bench_worker.kernels.base import DTYPES, ExpertSource, ExpertWeights
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
        self._sign = sign
        self._ranks: dict[tuple[int, tuple[int, ...]], ExpertWeights] = {}
        self.layers = [self._layer(weights, SeededExperts(self, key.seed, i), key.held) for i in range(key.layers)]
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
        experts: ExpertSource = seeded.make(range(model.experts), self._sign) if held == "layers" else seeded
        shared = dense_weights(model.hidden, model.shared_intermediate, weights) if model.shared_intermediate else None
        return LayerWeights(weights.matrix(model.experts, model.hidden), experts, shared)

    def experts_of_rank(self, layer: int, logical: Sequence[int]) -> ExpertWeights:
        """The weights of these experts of a layer, as one rank holds them; whoever holds the same shares them."""
        key = layer, tuple(logical)
        if key not in self._ranks:
            self._ranks[key] = self._copied(self.layers[layer].experts, logical)
        return self._ranks[key]

    def _copied(self, experts: ExpertSource, logical: Sequence[int]) -> ExpertWeights:
        if isinstance(experts, SeededExperts):
            return experts.make(logical, self._sign)
        assert isinstance(experts, ExpertWeights)
        first, count = logical[0], len(logical)
        if list(logical) == list(range(first, first + count)):  # they lie together already
            return ExpertWeights(experts.gate_up[first : first + count], experts.down[first : first + count])
        chosen = torch.tensor(logical, device=self.device)
        return ExpertWeights(experts.gate_up[chosen], experts.down[chosen])

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
