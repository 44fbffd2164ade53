"""Soft MoE: slots that mix all tokens, experts that run on slots, results mixed back (Puigcerver 2308.00951).

Non-causal: every slot holds something of every token of the step, later ones included, so a model routed like this
can't decode token by token in production.

Shapes: ``T`` tokens, ``E`` experts, ``S`` slots an expert; column e·S + j is slot j of expert e.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bench_worker.routing.base import Router, SoftSlots
from bench_worker.strategies import slots


class Soft(Router):
    """Slot logits l[t, e, j] = s[t, e] + s[t, :]·Φ[:, e, j], with Φ seeded normal of variance 1/E. Dispatch is the
    softmax of l over tokens, combine the softmax over all slots.

    ``slots_per_expert`` S defaults to max(1, round(T·k/E)), the compute of top-k (the paper takes T/E). Φ is what makes
    an expert's slots differ: a constant for each slot would cancel in the softmax over tokens.
    """

    strategy = "soft"

    def __init__(
        self, num_experts: int, top_k: int | None = None, slots_per_expert: int | None = None, seed: int = 0
    ) -> None:
        super().__init__(num_experts)
        self.top_k = top_k
        self.slots_per_expert = slots_per_expert
        self._seed = seed
        self._products = torch.empty(num_experts, num_experts, 0)  # Φ + I, for the slots so far

    def checked(self, scores: Tensor, token_ids: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """As `Router.checked`; a score of −inf counts as the token's lowest finite one, since a slot mixes all tokens
        and none can be left out."""
        scores = super().checked(scores, token_ids, bias)
        lowest = scores.where(scores > -torch.inf, torch.inf).amin(dim=1, keepdim=True)
        return scores.maximum(lowest)

    def slots(self, num_tokens: int) -> int:
        """S for a step of ``num_tokens`` tokens."""
        if self.slots_per_expert is not None:
            return self.slots_per_expert
        assert self.top_k is not None
        return slots(num_tokens, self.num_experts, self.top_k)

    def prepare(self, num_tokens: int, device: torch.device) -> None:
        """Grow Φ to the slots of ``num_tokens`` tokens. Slot j has a seed of its own: it stays when S grows."""
        made, wanted = self._products.shape[2], self.slots(num_tokens)
        if made < wanted:
            more = torch.stack([self._slot(j) for j in range(made, wanted)], dim=2)
            self._products = torch.cat([self._products.cpu(), more], dim=2)
        self._products = self._products.to(device)

    def mixers(self, num_tokens: int) -> Tensor:
        """Φ [E, E, S] for a step of ``num_tokens`` tokens."""
        self.prepare(num_tokens, self._products.device)
        own = torch.eye(self.num_experts, device=self._products.device)[:, :, None]
        return self._products[:, :, : self.slots(num_tokens)] - own

    def select(self, scores: Tensor, token_ids: Tensor | None = None, bias: Tensor | None = None) -> SoftSlots:
        num_tokens = scores.shape[0]
        self.prepare(num_tokens, scores.device)
        product = self._products[:, :, : self.slots(num_tokens)].reshape(self.num_experts, -1)  # [E, E·S]
        logits = scores @ product
        return SoftSlots(logits.softmax(dim=0), logits.softmax(dim=1))

    def _slot(self, slot: int) -> Tensor:
        """Φ[:, :, slot] + I: one product with it gives s[t, e] + s[t, :]·Φ[:, e, slot]."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + slot)
        noise = torch.randn(self.num_experts, self.num_experts, generator=generator)
        return noise * self.num_experts**-0.5 + torch.eye(self.num_experts)
