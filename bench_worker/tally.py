"""Counting what a step's routing came to, between steps, outside the clock.

Shapes: ``T`` tokens, ``E`` experts, ``L`` executed layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bench_worker.outcome import Outcome
from bench_worker.routing import Assignments, Router, SoftSlots


def tally(
    routed: Sequence[Assignments | SoftSlots],
    scores: Sequence[Tensor],
    token_ids: Tensor,
    num_experts: int,
    own: Router | None,
) -> Outcome:
    """The outcome of a step, ``routed`` [L] by ``scores`` [L] of [T, E]. ``own`` is the model's own router, None where
    that is the one in use."""
    rows = np.zeros((len(routed), num_experts), np.int64)
    per_token = np.zeros(num_experts + 1, np.int64)
    dropped, common, either = 0, 0, 0
    for layer, (one, layer_scores) in enumerate(zip(routed, scores, strict=True)):
        if isinstance(one, SoftSlots):
            tokens, slots = one.dispatch.shape
            rows[layer] = slots // num_experts
            per_token[num_experts] += tokens  # every token is in every slot
            continue
        rows[layer] = _count(one.expert, num_experts)
        per_token += _count(_counts(one.token, one.num_tokens), num_experts + 1)
        dropped += one.dropped
        chosen = one.expert.numel()
        both, others = chosen, chosen
        if own is not None:
            best = own.select(layer_scores, token_ids)
            assert isinstance(best, Assignments)
            both, others = _common(one, best), best.expert.numel()
        common += both
        either += chosen + others - both
    if any(isinstance(one, SoftSlots) for one in routed):
        return Outcome(rows, per_token, dropped, None, None)
    return Outcome(rows, per_token, dropped, common, either)


def _count(values: Tensor, size: int) -> np.ndarray:
    return _counts(values, size).cpu().numpy()


def _counts(values: Tensor, size: int) -> Tensor:
    """How often each of 0 … ``size`` − 1 is among ``values``."""
    return torch.bincount(values, minlength=size)


def _common(a: Assignments, b: Assignments) -> int:
    """Pairs of a token and an expert that both have."""
    has = torch.zeros(a.num_tokens * a.num_experts, dtype=torch.bool, device=a.token.device)
    has[a.token * a.num_experts + a.expert] = True
    return int(has[b.token * b.num_experts + b.expert].sum())
