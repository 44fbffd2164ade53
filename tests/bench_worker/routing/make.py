"""Scores to route, from the plain to the awkward, and what a routing came to as plain values."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from bench_worker.routing import Assignments

#: How scores may lie. ``ties``: few different values. ``flat``: all the same. ``masked``: some −inf, in every row at
#: least one that isn't. ``narrow``: bfloat16's.
KINDS = ("plain", "ties", "flat", "masked", "narrow", "steep")


def made_scores(num_tokens: int, num_experts: int, kind: str = "plain", seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(num_tokens, num_experts, generator=generator)
    if kind == "ties":
        return scores.round()
    if kind == "flat":
        return torch.full_like(scores, float(scores.flatten()[0]) if scores.numel() else 0.0)
    if kind == "masked":
        hidden = torch.rand(num_tokens, num_experts, generator=generator) < 0.4
        hidden[:, int(torch.randint(num_experts, (1,), generator=generator))] = False
        return scores.masked_fill(hidden, -torch.inf)
    if kind == "narrow":
        return scores.bfloat16()
    return scores * 8 if kind == "steep" else scores


@st.composite
def problems(draw, kinds=KINDS, max_tokens=24, max_experts=16):
    """``(scores, top_k)``: one token or many, fewer than experts or more, one expert, all experts a token."""
    num_experts = draw(st.integers(1, max_experts))
    num_tokens = draw(st.integers(1, max_tokens))
    top_k = draw(st.integers(1, num_experts))
    return made_scores(num_tokens, num_experts, draw(st.sampled_from(kinds)), draw(st.integers(0, 2**31))), top_k


def weights_of(routed: Assignments) -> dict[tuple[int, int], float]:
    """(token, expert) -> weight; fails on an expert that a token got twice."""
    pairs = list(zip(routed.token.tolist(), routed.expert.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    return dict(zip(pairs, routed.weight.tolist(), strict=True))


def load_of(routed: Assignments) -> list[int]:
    """Assignments of each expert."""
    return torch.bincount(routed.expert, minlength=routed.num_experts).tolist()


def per_token(routed: Assignments) -> list[int]:
    """Experts of each token."""
    return torch.bincount(routed.token, minlength=routed.num_tokens).tolist()
