"""Attention over a KV cache of the right length, with the norms, projections and residuals of its block.

Shapes: ``T`` tokens of the step, ``H`` hidden, ``q`` query heads, ``n`` key/value heads, ``d`` head size, ``S`` cache
slots, ``C`` cache length.

A step mixes requests that decode (one new token, long context) with chunks of prompts. Each request's rows attend to
its own cache, which is read in pages of 16 tokens: a decoding request through two batched matrix products over the
query heads of each key/value head (several times faster on the CPU than the fused kernel at one query), a chunk through
``scaled_dot_product_attention`` with the causal mask of its position.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import copy
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from bench_worker.models import GQA, MLA, Model
from bench_worker.step_layout import Segment, StepLayout
from bench_worker.weights import Weights

EPSILON = 1e-6
#: Tokens in a page of the KV cache; a cache's length is a multiple of it.
PAGE = 16


def round_up_to_page(tokens: int) -> int:
    return -(-tokens // PAGE) * PAGE


class Attention(Protocol):
    """One block of the model outside its MoE layer."""

    def make_cache(self, slots: int, length: int, weights: Weights) -> None: ...

    def free_cache(self) -> None: ...

    def before(self, hidden: Tensor) -> Tensor: ...

    def attend(self, normed: Tensor, layout: StepLayout) -> Tensor: ...

    def after(self, hidden: Tensor) -> Tensor: ...

    def forward(self, hidden: Tensor, update: Tensor, layout: StepLayout) -> tuple[Tensor, Tensor]: ...

    def shard(self, member: int, members: int) -> Attention: ...


def build_attention(model: Model, weights: Weights) -> dict[str, Attention]:
    """One block of each kind of attention that the model has, by stage name. Caches are made later, per condition."""
    a = model.attention
    if isinstance(a, MLA):
        return {"attention": LatentAttention(model.hidden, a, weights)}
    windows = {"full": None, "sliding": model.window}
    blocks: dict[str, Attention] = {
        f"attention.{kind}": GroupedQueryAttention(model.hidden, a, windows[kind], weights)
        for kind in model.attention_layers
    }
    if len(blocks) == 1:
        blocks = {"attention": blocks.popitem()[1]}
    return blocks


def rms_norm(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Root-mean-square norm over the last dimension (1910.07467)."""
    return F.rms_norm(x, x.shape[-1:], weight, EPSILON)


def _attend_one(query: Tensor, keys: Tensor, values: Tensor, context: int, scale: float, window: int | None) -> Tensor:
    """`attend` for one row. Whole pages are read and what lies past the context is masked, so that the shapes, and with
    them the kernels that oneDNN makes, repeat over 16 steps. Keys stand first in the product: the other way round it
    takes five times as long."""
    num_queries, num_kv = query.shape[1], keys.shape[0]
    first = 0 if window is None else max(0, context - window) // PAGE * PAGE
    last = round_up_to_page(context)
    grouped = query.view(num_kv, num_queries // num_kv, -1)
    logits = torch.matmul(keys[:, first:last], grouped.transpose(-1, -2)).mul_(scale)  # [n, C, q / n]
    logits[:, context - first :] = -torch.inf
    if window is not None:
        logits[:, : max(0, context - window - first)] = -torch.inf
    share = logits.transpose(-1, -2).softmax(dim=-1, dtype=torch.float32)
    return torch.matmul(share.to(values.dtype), values[:, first:last]).view(1, num_queries, -1)


class Block(ABC):
    """What stands around the heads of a block: a norm before attention and one after it for the MoE layer, and the
    residual stream.

    The heads may be divided among the ranks of a tensor-parallel group (Megatron-LM, 1909.08053): each has its `shard`,
    and what their `attend` returns sums to that of the whole block.
    """

    def __init__(self, hidden: int, weights: Weights) -> None:
        self._before, self._after = weights.ones(hidden), weights.ones(hidden)

    def before(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self._before)

    def after(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self._after)

    @abstractmethod
    def attend(self, normed: Tensor, layout: StepLayout) -> Tensor:
        """What these heads add to the residual stream [T, H], of the ``normed`` rows [T, H]. Appends the rows' keys and
        values to the cache."""

    @abstractmethod
    def shard(self, member: int, members: int) -> Attention:
        """The part of rank ``member`` of a group of ``members``, with weights of its own. Caches are made later."""

    def forward(self, hidden: Tensor, update: Tensor, layout: StepLayout) -> tuple[Tensor, Tensor]:
        """One block outside its MoE layer: adds the layer below's ``update`` to the residual stream ``hidden`` [T, H],
        attends, and returns the new stream and the normed rows for this block's MoE layer."""
        hidden = hidden + update
        hidden = hidden + self.attend(self.before(hidden), layout)
        return hidden, self.after(hidden)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of ``x`` [T, heads, d] (RoFormer 2104.09864) with ``cos``, ``sin`` [T, 1, d/2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class RotaryTable:
    """cos and sin of every position [C, d/2], computed once."""

    def __init__(self, length: int, dim: int, weights: Weights, base: float = 10_000.0) -> None:
        frequency = base ** (-torch.arange(0, dim, 2, device=weights.device, dtype=torch.float32) / dim)
        angle = torch.arange(length, device=weights.device, dtype=torch.float32)[:, None] * frequency
        self._cos, self._sin = angle.cos().to(weights.dtype), angle.sin().to(weights.dtype)

    def at(self, position: Tensor) -> tuple[Tensor, Tensor]:
        return self._cos[position][:, None], self._sin[position][:, None]


def attend(
    query: Tensor, keys: Tensor, values: Tensor, context: int, scale: float, window: int | None = None
) -> Tensor:
    """Causal attention of a request's last rows over its cache.

    ``query`` [L, q, d] are the newest L of the first ``context`` tokens in ``keys`` [n, ≥ context, d] and ``values``
    [n, ≥ context, v]; ``window`` lets each see the last ``window`` tokens only. Returns [L, q, v].
    """
    length = query.shape[0]
    if length == 1:
        return _attend_one(query, keys, values, context, scale, window)
    keys, values = keys[:, :context], values[:, :context]
    mask: Tensor | None
    if window is None or context <= window:
        mask = None if length == context else _lower_right(length, context, query.device)
    else:
        first = max(0, context - length - window + 1)  # the oldest token that the oldest row still sees
        keys, values, context = keys[:, first:], values[:, first:], context - first
        distance = torch.arange(context - length, context, device=query.device)[:, None] - torch.arange(
            context, device=query.device
        )
        mask = (distance >= 0) & (distance < window)
    out = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys[None], values[None],
        attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True,
    )  # fmt: skip
    return out[0].transpose(0, 1)


def _lower_right(length: int, context: int, device: torch.device) -> Tensor:
    """The causal mask [length, context] of the newest rows. Fused kernels of a GPU know it by name; those of the CPU
    want it written out, and the module of the name takes most of a second to load."""
    if device.type == "cpu":
        return torch.ones(length, context, dtype=torch.bool).tril(context - length)
    from torch.nn.attention.bias import causal_lower_right

    return causal_lower_right(length, context)


class GroupedQueryAttention(Block):
    """Grouped-query attention (2305.13245) of one layer; ``window`` limits how far back a token sees."""

    def __init__(self, hidden: int, a: GQA, window: int | None, weights: Weights) -> None:
        super().__init__(hidden, weights)
        self.heads, self.kv_heads, self.dim, self.window = a.heads, a.kv_heads, a.head_dim, window
        self.qkv = weights.matrix((a.heads + 2 * a.kv_heads) * a.head_dim, hidden)
        self.out = weights.matrix(hidden, a.heads * a.head_dim)
        self.norm_over = a.qk_norm
        self.keys = self.values = weights.noise(0)

    def make_cache(self, slots: int, length: int, weights: Weights) -> None:
        length = round_up_to_page(length)
        self.keys = weights.noise(slots, self.kv_heads, length, self.dim)
        self.values = weights.noise(slots, self.kv_heads, length, self.dim)
        self.rotary = RotaryTable(length, self.dim, weights)

    def free_cache(self) -> None:
        self.keys = self.values = self.keys.new_empty(0)

    def shard(self, member: int, members: int) -> GroupedQueryAttention:
        """Key and value heads are divided, too; where there are fewer of them than members, some have the same one."""
        part = copy(self)
        part.heads, part.kv_heads = self.heads // members, max(1, self.kv_heads // members)
        queries = slice(member * part.heads * self.dim, (member + 1) * part.heads * self.dim)
        first_kv = member * self.kv_heads // members * self.dim
        query, key, value = self.qkv.split([count * self.dim for count in (self.heads, self.kv_heads, self.kv_heads)])
        shared = slice(first_kv, first_kv + part.kv_heads * self.dim)
        part.qkv = torch.cat((query[queries], key[shared], value[shared]))
        part.out = self.out[:, queries].contiguous()
        return part

    def attend(self, normed: Tensor, layout: StepLayout) -> Tensor:
        rows = F.linear(normed, self.qkv)
        query, key, value = rows.view(len(rows), -1, self.dim).split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if self.norm_over is not None:
            query, key = self._normed(query), self._normed(key)
        cos, sin = self.rotary.at(layout.position)
        query, key = rotary(query, cos, sin), rotary(key, cos, sin)
        self.keys[layout.slot, :, layout.position] = key
        self.values[layout.slot, :, layout.position] = value
        attended = torch.cat([self._segment(query, s) for s in layout.segments])
        return F.linear(attended.reshape(len(rows), -1), self.out)

    def _normed(self, heads: Tensor) -> Tensor:
        """Query or key norm of ``heads`` [T, heads, d]: over each head, or over all of them together."""
        return rms_norm(heads.flatten(1)).view_as(heads) if self.norm_over == "width" else rms_norm(heads)

    def _segment(self, query: Tensor, s: Segment) -> Tensor:
        rows = query[s.start : s.start + s.length]
        context, scale = s.context + s.length, 1 / math.sqrt(self.dim)
        return attend(rows, self.keys[s.slot], self.values[s.slot], context, scale, self.window)


class LatentAttention(Block):
    """Multi-head latent attention (DeepSeek-V2 2405.04434) of one layer.

    The cache holds the latent and the shared rotary key. A decoding request attends in the latent space, with the key
    and value up-projections absorbed into query and output; a chunk expands its keys and values first.
    """

    def __init__(self, hidden: int, a: MLA, weights: Weights) -> None:
        super().__init__(hidden, weights)
        self.heads, self.latent, self.nope, self.rope = a.heads, a.kv_lora, a.nope, a.rope
        self.query_down = None if a.q_lora is None else weights.matrix(a.q_lora, hidden)
        self.query_up = weights.matrix(a.heads * (a.nope + a.rope), a.q_lora or hidden)
        self.latent_down = weights.matrix(a.kv_lora + a.rope, hidden)
        self.key_up = weights.matrix(a.heads, a.nope, a.kv_lora)
        self.value_up = weights.matrix(a.heads, a.v_dim, a.kv_lora)
        self.out = weights.matrix(hidden, a.heads * a.v_dim)
        self.scale = 1 / math.sqrt(a.nope + a.rope)
        self.cache = weights.noise(0)

    def make_cache(self, slots: int, length: int, weights: Weights) -> None:
        length = round_up_to_page(length)
        self.cache = weights.noise(slots, length, self.latent + self.rope)
        self.rotary = RotaryTable(length, self.rope, weights)

    def free_cache(self) -> None:
        self.cache = self.cache.new_empty(0)

    def shard(self, member: int, members: int) -> LatentAttention:
        """Down-projections and the cache, which serve all heads, are whole on every member."""
        part = copy(self)
        part.heads = self.heads // members
        own = slice(member * part.heads, (member + 1) * part.heads)
        part.query_up = self.query_up.unflatten(0, (self.heads, -1))[own].flatten(0, 1).clone()
        part.key_up, part.value_up = self.key_up[own].clone(), self.value_up[own].clone()
        part.out = self.out.unflatten(1, (self.heads, -1))[:, own].flatten(1).contiguous()
        return part

    def attend(self, normed: Tensor, layout: StepLayout) -> Tensor:
        count = len(normed)
        query_rows = normed if self.query_down is None else rms_norm(F.linear(normed, self.query_down))
        query = F.linear(query_rows, self.query_up)
        query_nope, query_rope = query.view(count, self.heads, -1).split((self.nope, self.rope), dim=-1)
        latent, key_rope = F.linear(normed, self.latent_down).split((self.latent, self.rope), dim=-1)
        cos, sin = self.rotary.at(layout.position)
        query_rope = rotary(query_rope, cos, sin)
        key_rope = rotary(key_rope[:, None], cos, sin)[:, 0]
        latent = rms_norm(latent)
        self.cache[layout.slot, layout.position] = torch.cat((latent, key_rope), dim=-1)
        attended = torch.cat([self._segment(query_nope, query_rope, s) for s in layout.segments])
        return F.linear(attended.reshape(count, -1), self.out)

    def _segment(self, query_nope: Tensor, query_rope: Tensor, s: Segment) -> Tensor:
        rows = slice(s.start, s.start + s.length)
        context = s.context + s.length
        cached = self.cache[s.slot, : round_up_to_page(context)]  # [C, latent + rope]
        latent, key_rope = cached.split((self.latent, self.rope), dim=-1)
        if s.length == 1:
            absorbed = torch.matmul(query_nope[rows].transpose(0, 1), self.key_up)  # [q, 1, latent]
            query = torch.cat((absorbed.transpose(0, 1), query_rope[rows]), dim=-1)
            mixed = attend(query, cached[None], latent[None], context, self.scale)  # [1, q, latent]
            return torch.matmul(mixed.transpose(0, 1), self.value_up.transpose(-1, -2)).transpose(0, 1)
        keys = torch.matmul(latent, self.key_up.transpose(-1, -2))  # [q, C, nope]
        keys = torch.cat((keys, key_rope.expand(self.heads, -1, -1)), dim=-1)
        values = torch.matmul(latent, self.value_up.transpose(-1, -2))
        query = torch.cat((query_nope[rows], query_rope[rows]), dim=-1)
        return attend(query, keys, values, context, self.scale)
