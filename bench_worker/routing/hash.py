"""Hash routing: the token's id alone decides (Roller 2106.04426; DeepSeek-V4 uses a table by token id as well).

Shapes: ``T`` tokens, ``E`` experts, ``k`` experts a token, ``V`` token ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bench_worker.routing.base import Assignments, Router, token_major

#: Token ids where no model says how many there are; above the vocabulary of every preset.
VOCAB = 2**18


class Hash(Router):
    """A fixed seeded table [V, k] of k distinct experts a token id, balanced over the vocabulary: the experts' loads in
    it differ by at most 1. Weights 1/k. Needs ``token_ids``; scores play no part."""

    strategy = "hash"

    def __init__(self, num_experts: int, top_k: int, vocab: int = VOCAB, seed: int = 0) -> None:
        super().__init__(num_experts)
        self.top_k = top_k
        self.vocab = vocab
        self.table = make_table(vocab, num_experts, top_k, seed)

    def checked(self, scores: Tensor, token_ids: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        scores = super().checked(scores, token_ids, bias)
        if token_ids is None:
            raise ValueError("token_ids: none are given, and hash routes by nothing else")
        if token_ids.shape != scores.shape[:1]:
            raise ValueError(f"token_ids: has the shape {list(token_ids.shape)}; it must be [{scores.shape[0]} tokens]")
        if token_ids.numel() and not bool(((token_ids >= 0) & (token_ids < self.vocab)).all()):
            wrong = int(token_ids[(token_ids < 0) | (token_ids >= self.vocab)][0])
            raise ValueError(f"token_ids: {wrong} is not between 0 and {self.vocab - 1}")
        return scores

    def prepare(self, num_tokens: int, device: torch.device) -> None:
        self.table = self.table.to(device)

    def select(self, scores: Tensor, token_ids: Tensor | None = None, bias: Tensor | None = None) -> Assignments:
        assert token_ids is not None, "`checked` refuses scores without token ids"
        self.prepare(scores.shape[0], scores.device)
        expert = self.table[token_ids]
        weight = torch.full(expert.shape, 1 / self.top_k, device=expert.device)
        return token_major(expert, weight, self.num_experts)


def make_table(vocab: int, num_experts: int, top_k: int, seed: int) -> Tensor:
    """Experts int64 [V, k]: distinct in a row, and as often in the whole table as any other, give or take one.

    Rows are made in blocks of E: with a random order π of the experts and k random distinct shifts, row i of a block
    holds π[(i + shift) mod E], so a block holds every expert k times. What is left, fewer than E rows, takes k
    neighbours at a time going round π. Last, the rows are shuffled over the ids.
    """
    generator = torch.Generator().manual_seed(seed)

    def orders(count: int) -> Tensor:
        return torch.rand(count, num_experts, generator=generator).argsort(dim=1)

    blocks, rest = divmod(vocab, num_experts)
    row = torch.arange(num_experts)[None, :, None]
    shift = orders(blocks)[:, None, :top_k]
    whole = orders(blocks)[:, :, None].expand(-1, -1, top_k).gather(1, (row + shift) % num_experts)
    around = orders(1)[0][torch.arange(rest * top_k) % num_experts]
    table = torch.cat([whole.reshape(-1, top_k), around.view(rest, top_k)])
    return table[torch.randperm(vocab, generator=generator)]
