"""What a router returns, and the small interface every strategy implements.

Shapes: ``T`` tokens, ``E`` experts, ``k`` experts a token, ``N`` assignments that were kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Assignments:
    """Which token goes to which expert, and how much that expert's output counts.

    ``token`` int64 [N] is non-decreasing (token-major), ``expert`` int64 [N], ``weight`` float32 [N]. ``dropped``
    counts the assignments that a capacity limit refused; they are not among the N.
    """

    token: Tensor
    expert: Tensor
    weight: Tensor
    num_tokens: int
    num_experts: int
    dropped: int = 0


class Router(Protocol):
    """One routing strategy with its parameters set."""

    def route(self, scores: Tensor, token_ids: Tensor | None = None, bias: Tensor | None = None) -> Assignments:
        """Assign tokens from router logits ``scores`` [T, E] float32, before any softmax.

        ``token_ids`` int64 [T] are read by strategies that route by identity, ``bias`` float32 [E] changes what is
        chosen but never a weight.
        """
        ...
