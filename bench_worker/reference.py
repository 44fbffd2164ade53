"""The slow, obvious MoE layer in float64 that every variant must equal before it is timed.

It shares nothing with the fast path but the weights: `bench_worker.routing.reference` chooses the experts token by
token in plain Python, and plain matrix products compute them one at a time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bench_worker.layer import DenseWeights, LayerWeights
from bench_worker.routing import SoftSlots
from bench_worker.routing.reference import Choice


def layer(
    hidden: Tensor,
    weights: LayerWeights,
    routed: list[Choice] | SoftSlots,
    activation: str,
    weight_on_input: bool = False,
    tokens: list[int] | None = None,
) -> Tensor:
    """The layer's output, float64, for ``hidden`` [T, H].

    [T, H], or only the rows of ``tokens``, in ascending order.
    """
    rows = list(range(len(hidden))) if tokens is None else tokens
    x = hidden.double()
    if isinstance(routed, SoftSlots):
        out = _of_slots(x, weights, routed, activation)[rows]
    else:
        out = _of_choices(x, weights, routed, activation, weight_on_input, rows)
    if weights.shared is not None:
        out += _dense(x[rows], weights.shared)
    return out


def _of_choices(
    x: Tensor, weights: LayerWeights, choices: list[Choice], activation: str, weight_on_input: bool, rows: list[int]
) -> Tensor:
    """A sum over the chosen experts of each token among ``rows``."""
    row_of = {token: row for row, token in enumerate(rows)}
    out = torch.zeros(len(rows), x.shape[1], dtype=torch.float64, device=x.device)
    chosen = [choice for choice in choices if choice[0] in row_of]
    for expert in sorted({e for _, e, _ in chosen}):
        gate, up, down = _expert(weights, expert)
        for token, _, weight in [c for c in chosen if c[1] == expert]:
            row = x[token] * weight if weight_on_input else x[token]
            y = down @ activate(gate @ row, up @ row, activation)
            out[row_of[token]] += y if weight_on_input else weight * y
    return out


def _of_slots(x: Tensor, weights: LayerWeights, slots: SoftSlots, activation: str) -> Tensor:
    """Slots mix tokens, experts run on their slots, tokens mix the results."""
    num_experts = weights.gate.shape[0]
    out = torch.zeros_like(x)
    shares = zip(slots.dispatch.chunk(num_experts, dim=1), slots.combine.chunk(num_experts, dim=1), strict=True)
    for expert, (dispatch, combine) in enumerate(shares):
        gate, up, down = _expert(weights, expert)
        slot = dispatch.to(x).T @ x
        out += combine.to(x) @ (activate(slot @ gate.T, slot @ up.T, activation) @ down.T)
    return out


def _expert(weights: LayerWeights, expert: int) -> tuple[Tensor, Tensor, Tensor]:
    gate, up, down = weights.experts.of(expert)
    return gate.double(), up.double(), down.double()


def activate(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """The expert activations by their published formulas: SwiGLU (2002.05202), and gpt-oss's clamped form."""
    if activation == "swiglu":
        return gate * torch.sigmoid(gate) * up
    if activation == "swiglu_oai":
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return (up + 1) * gate * torch.sigmoid(1.702 * gate)
    raise ValueError(f"activation: {activation!r} is not one of swiglu, swiglu_oai")


def _dense(x: Tensor, weights: DenseWeights) -> Tensor:
    gate, up = (x @ weights.gate_up.double().T).chunk(2, dim=-1)
    return activate(gate, up, "swiglu") @ weights.down.double().T


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Worst token's ‖actual − expected‖ / ‖expected‖ over its row; NaN anywhere in ``actual`` gives infinity.

    A norm a token, since one over the whole batch would hide a single wrong row, and single elements cancel to zero.
    """
    error = (actual.double() - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-300)
    return math.inf if bool(error.isnan().any()) else float(error.max())
