"""What a router returns, and the one base that every strategy builds on.

Shapes: ``T`` tokens, ``E`` experts, ``k`` experts a token, ``N`` assignments that were kept, ``S`` slots an expert.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench_worker.strategies import STRATEGIES


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


@dataclass(frozen=True)
class SoftSlots:
    """Every token in every slot, by weight. ``dispatch`` float32 [T, E·S] mixes tokens into slots, each column sums to
    1; ``combine`` float32 [T, E·S] mixes the slots' results back, each row sums to 1. Slot j of expert e is column
    e·S + j."""

    dispatch: Tensor
    combine: Tensor


class Router(ABC):
    """One routing strategy with its parameters set."""

    #: Its name, as in `bench_worker.strategies.STRATEGIES`.
    strategy: ClassVar[str]

    def __init__(self, num_experts: int) -> None:
        self.num_experts = num_experts

    @property
    def causal(self) -> bool:
        """A token's experts depend on no later token, so the strategy can decode token by token."""
        return STRATEGIES[self.strategy].causal

    def route(
        self, scores: Tensor, token_ids: Tensor | None = None, bias: Tensor | None = None
    ) -> Assignments | SoftSlots:
        """Assign tokens from router logits ``scores`` [T, E], before any softmax, in float32 or narrower.

        ``token_ids`` int64 [T] are read by strategies that route by identity. ``bias`` float32 [E] is added where a
        strategy with that parameter chooses, in the place of the one that it was built with, and never to a weight.

        −inf means never, where a token has k better experts. A token whose scores are all −inf is routed as if they
        were all the same. Raises ``ValueError`` for NaN, +inf and wrong shapes.
        """
        scores = self.checked(scores, token_ids, bias)
        return self.select(scores, token_ids, bias)

    def checked(self, scores: Tensor, token_ids: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """``scores`` as `select` takes them: float32, with no NaN, no +inf and no row that is all −inf.

        It waits once for the device, since only the host can raise: whoever times a selection calls this outside the
        clock, when the scores are made, and `select` alone inside it.
        """
        if scores.ndim != 2 or scores.shape[1] != self.num_experts or not scores.is_floating_point():
            kind = f"{str(scores.dtype).removeprefix('torch.')} {list(scores.shape)}"
            raise ValueError(f"scores: {kind} is not a matrix of numbers [tokens, {self.num_experts} experts]")
        if bias is not None and bias.shape != (self.num_experts,):
            raise ValueError(f"bias: has the shape {list(bias.shape)}; it must be [{self.num_experts}]")
        scores = scores.float()
        highest = scores.amax(dim=1)  # NaN wins, so one pass finds all three
        right = highest.isfinite().all()
        if bias is not None:
            right &= (bias < torch.inf).all()
        if right:
            return scores
        if bias is not None and not bool((bias < torch.inf).all()):
            raise ValueError("bias: holds a NaN or +inf; numbers and -inf are allowed")
        for found, name in ((highest.isnan(), "NaN"), (highest == torch.inf, "+inf")):
            if bool(found.any()):
                token = int(found.nonzero()[0])
                raise ValueError(f"scores: token {token} has a {name}; numbers and -inf are allowed")
        return scores.where(highest.isfinite()[:, None], 0.0)

    def prepare(self, num_tokens: int, device: torch.device) -> None:  # noqa: B027  # most strategies need nothing
        """Make now what `select` would make at its first call with up to ``num_tokens`` tokens."""

    @abstractmethod
    def select(
        self, scores: Tensor, token_ids: Tensor | None = None, bias: Tensor | None = None
    ) -> Assignments | SoftSlots:
        """`route` without its checks: what the clock of ``route.select`` covers."""


def token_major(expert: Tensor, weight: Tensor, num_experts: int) -> Assignments:
    """Assignments of ``expert`` [T, k] with ``weight`` [T, k], none dropped."""
    num_tokens, per_token = expert.shape
    token = torch.arange(num_tokens, device=expert.device).repeat_interleave(per_token)
    return Assignments(token, expert.flatten(), weight.flatten(), num_tokens, num_experts)
