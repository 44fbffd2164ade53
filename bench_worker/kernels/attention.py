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
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

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

    def forward(self, hidden: Tensor, update: Tensor, layout: StepLayout) -> tuple[Tensor, Tensor]: ...


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


class Norms:
    """The two norms of a block: before attention, and after it for the MoE layer."""

    def __init__(self, hidden: int, weights: Weights) -> None:
        self._before, self._after = weights.ones(hidden), weights.ones(hidden)

    def before(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self._before)

    def after(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self._after)


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
    mask: Tensor
    if window is None or context <= window:
        mask = causal_lower_right(length, context)
    else:
        first = max(0, context - length - window + 1)  # the oldest token that the oldest row still sees
        keys, values, context = keys[:, first:], values[:, first:], context - first
        distance = torch.arange(context - length, context, device=query.device)[:, None] - torch.arange(
            context, device=query.device
        )
        mask = (distance >= 0) & (distance < window)
    out = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, scale=scale, enable_gqa=True
    )
    return out[0].transpose(0, 1)


class GroupedQueryAttention:
    """Grouped-query attention (2305.13245) of one layer; ``window`` limits how far back a token sees."""

    def __init__(self, hidden: int, a: GQA, window: int | None, weights: Weights) -> None:
        self.heads, self.kv_heads, self.dim, self.window = a.heads, a.kv_heads, a.head_dim, window
        self.qkv = weights.matrix((a.heads + 2 * a.kv_heads) * a.head_dim, hidden)
        self.out = weights.matrix(hidden, a.heads * a.head_dim)
        self.norms = Norms(hidden, weights)
        self.norm_over = a.qk_norm
        self.keys = self.values = weights.noise(0)

    def make_cache(self, slots: int, length: int, weights: Weights) -> None:
        length = round_up_to_page(length)
        self.keys = weights.noise(slots, self.kv_heads, length, self.dim)
        self.values = weights.noise(slots, self.kv_heads, length, self.dim)
        self.rotary = RotaryTable(length, self.dim, weights)

    def free_cache(self) -> None:
        self.keys = self.values = self.keys.new_empty(0)

    def forward(self, hidden: Tensor, update: Tensor, layout: StepLayout) -> tuple[Tensor, Tensor]:
        """One block outside its MoE layer: adds the layer below's ``update`` to the residual stream ``hidden`` [T, H],
        attends, and returns the new stream and the normed rows for this block's MoE layer. Appends the rows' keys and
        values to the cache."""
        hidden = hidden + update
        rows = F.linear(self.norms.before(hidden), self.qkv)
        query, key, value = rows.view(len(rows), -1, self.dim).split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if self.norm_over is not None:
            query, key = self._normed(query), self._normed(key)
        cos, sin = self.rotary.at(layout.position)
        query, key = rotary(query, cos, sin), rotary(key, cos, sin)
        self.keys[layout.slot, :, layout.position] = key
        self.values[layout.slot, :, layout.position] = value
        attended = torch.cat([self._segment(query, s) for s in layout.segments])
        hidden = hidden + F.linear(attended.reshape(len(rows), -1), self.out)
        return hidden, self.norms.after(hidden)

    def _normed(self, heads: Tensor) -> Tensor:
        """Query or key norm of ``heads`` [T, heads, d]: over each head, or over all of them together."""
        return rms_norm(heads.flatten(1)).view_as(heads) if self.norm_over == "width" else rms_norm(heads)

    def _segment(self, query: Tensor, s: Segment) -> Tensor:
        rows = query[s.start : s.start + s.length]
        context, scale = s.context + s.length, 1 / math.sqrt(self.dim)
        return attend(rows, self.keys[s.slot], self.values[s.slot], context, scale, self.window)


class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2 2405.04434) of one layer.

    The cache holds the latent and the shared rotary key. A decoding request attends in the latent space, with the key
    and value up-projections absorbed into query and output; a chunk expands its keys and values first.
    """

    def __init__(self, hidden: int, a: MLA, weights: Weights) -> None:
        self.heads, self.latent, self.nope, self.rope = a.heads, a.kv_lora, a.nope, a.rope
        self.query_down = None if a.q_lora is None else weights.matrix(a.q_lora, hidden)
        self.query_up = weights.matrix(a.heads * (a.nope + a.rope), a.q_lora or hidden)
        self.latent_down = weights.matrix(a.kv_lora + a.rope, hidden)
        self.key_up = weights.matrix(a.heads, a.nope, a.kv_lora)
        self.value_up = weights.matrix(a.heads, a.v_dim, a.kv_lora)
        self.out = weights.matrix(hidden, a.heads * a.v_dim)
        self.norms = Norms(hidden, weights)
        self.scale = 1 / math.sqrt(a.nope + a.rope)
        self.cache = weights.noise(0)

    def make_cache(self, slots: int, length: int, weights: Weights) -> None:
        length = round_up_to_page(length)
        self.cache = weights.noise(slots, length, self.latent + self.rope)
        self.rotary = RotaryTable(length, self.rope, weights)

    def free_cache(self) -> None:
        self.cache = self.cache.new_empty(0)

    def forward(self, hidden: Tensor, update: Tensor, layout: StepLayout) -> tuple[Tensor, Tensor]:
        """As `GroupedQueryAttention.forward`."""
        hidden = hidden + update
        normed = self.norms.before(hidden)
        query_rows = normed if self.query_down is None else rms_norm(F.linear(normed, self.query_down))
        query = F.linear(query_rows, self.query_up)
        query_nope, query_rope = query.view(len(hidden), self.heads, -1).split((self.nope, self.rope), dim=-1)
        latent, key_rope = F.linear(normed, self.latent_down).split((self.latent, self.rope), dim=-1)
        cos, sin = self.rotary.at(layout.position)
        query_rope = rotary(query_rope, cos, sin)
        key_rope = rotary(key_rope[:, None], cos, sin)[:, 0]
        latent = rms_norm(latent)
        self.cache[layout.slot, layout.position] = torch.cat((latent, key_rope), dim=-1)
        attended = torch.cat([self._segment(query_nope, query_rope, s) for s in layout.segments])
        hidden = hidden + F.linear(attended.reshape(len(hidden), -1), self.out)
        return hidden, self.norms.after(hidden)

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
