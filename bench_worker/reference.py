"""The slow, obvious MoE layer in float64 that every variant must equal before it is timed.

It shares nothing with the fast path but the weights: plain Python chooses the experts token by token, and plain matrix
products compute them one at a time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bench_worker.layer import DenseWeights, LayerWeights

#: (token, expert, weight)
Choice = tuple[int, int, float]


def token_choice(
    scores: list[list[float]],
    top_k: int,
    scoring: str = "softmax",
    renormalize: bool = True,
    route_scale: float = 1.0,
    capacity_factor: float | None = None,
    bias: list[float] | None = None,
) -> list[Choice]:
    """`bench_worker.routing.token_choice.TokenChoice` with loops (REFERENCE: Switch 2101.03961, GShard 2006.16668)."""
    choices: list[Choice] = []
    for token, row in enumerate(scores):
        if scoring == "softmax":
            top = max(row)
            total = sum(math.exp(s - top) for s in row)
            affinity = [math.exp(s - top) / total for s in row]
        else:
            affinity = [1 / (1 + math.exp(-s)) for s in row]
        biased = affinity if bias is None else [a + b for a, b in zip(affinity, bias, strict=True)]
        best = sorted(range(len(row)), key=lambda e: -biased[e])[:top_k]
        norm = sum(affinity[e] for e in best) if renormalize else 1.0
        choices += [(token, e, affinity[e] / norm * route_scale) for e in best]
    if capacity_factor is None:
        return choices
    capacity = math.ceil(capacity_factor * top_k * len(scores) / len(scores[0]))
    kept: list[Choice] = []
    for expert in {e for _, e, _ in choices}:
        mine = sorted((c for c in choices if c[1] == expert), key=lambda c: (-c[2], c[0]))
        kept += mine[:capacity]
    return sorted(kept)


ROUTERS = {"token_choice": token_choice}


def layer(
    hidden: Tensor,
    weights: LayerWeights,
    choices: list[Choice],
    activation: str,
    weight_on_input: bool = False,
    tokens: list[int] | None = None,
) -> Tensor:
    """The layer's output, float64, for ``hidden`` [T, H]: a sum over the chosen experts of each token.

    [T, H], or only the rows of ``tokens``, in ascending order.
    """
    if tokens is not None:
        row_of = {token: row for row, token in enumerate(tokens)}
        choices = [(row_of[token], expert, weight) for token, expert, weight in choices if token in row_of]
        hidden = hidden[tokens]
    x = hidden.double()
    out = torch.zeros_like(x)
    for expert in sorted({e for _, e, _ in choices}):
        gate = weights.experts.gate[expert].double()
        up = weights.experts.up[expert].double()
        down = weights.experts.down[expert].double()
        for token, _, weight in [c for c in choices if c[1] == expert]:
            row = x[token] * weight if weight_on_input else x[token]
            y = down @ activate(gate @ row, up @ row, activation)
            out[token] += y if weight_on_input else weight * y
    if weights.shared is not None:
        out += _dense(x, weights.shared)
    return out


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
