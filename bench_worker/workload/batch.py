"""What one step of a serving engine computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

__all__ = ["Batch", "Entry"]

NO_REQUESTS = np.empty(0, np.int64)


class Entry(NamedTuple):
    """One request's part of a step. ``context_tokens`` stand in its KV cache before the step."""

    request: int
    prefill_tokens: int
    decode_tokens: int
    context_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one step computes.

    ``table`` int64 [n, 4] holds the entries, with the columns of `Entry`: decodes first, then prompts, each in arrival
    order. ``yields`` bool [n]: the entry yields an output token (the head runs on these). ``ends`` bool [n]: that
    token is its request's last. ``arrivals`` int64 [a]: requests that have arrived since the step before.
    ``preempted`` int64 [p]: requests that lose their KV cache at the start of the step. Of the prefill tokens,
    ``recomputed_tokens`` were computed before a preemption; ``reused_tokens`` of the prompts that start here were found
    in the prefix cache, so they are context and not prefill.
    """

    table: np.ndarray
    yields: np.ndarray
    ends: np.ndarray
    arrivals: np.ndarray
    preempted: np.ndarray = field(default_factory=lambda: NO_REQUESTS)
    recomputed_tokens: int = 0
    reused_tokens: int = 0

    def part(self, own: np.ndarray) -> Batch:
        """What is computed of the entries ``own`` bool [n], as a batch by itself."""
        return Batch(self.table[own], self.yields[own], self.ends[own], arrivals=NO_REQUESTS)

    @property
    def entries(self) -> list[Entry]:
        """The rows of ``table``, made anew at each call."""
        return [Entry(*row) for row in self.table.tolist()]

    @property
    def prefill_tokens(self) -> int:
        return int(self.table[:, 1].sum())

    @property
    def decode_tokens(self) -> int:
        return int(self.table[:, 2].sum())

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decode_tokens
