"""What routing came to: who computes how much, and how far it is from the model's own choice. Pure; torch-free.

Shapes: ``E`` experts, ``L`` executed layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench_worker.result import RoutingOutcome

#: Groups of steps whose expert loads are kept apart.
MAX_GROUPS = 128


@dataclass(frozen=True)
class Outcome:
    """``rows`` int64 [L, E] that every expert computes; ``per_token`` int64 [E + 1]: tokens by how many experts they
    got, over all layers; ``dropped`` assignments. ``common`` of ``either`` pairs of a token and an expert are the
    choice of both this routing and the model's own; None where tokens have no experts of their own."""

    rows: np.ndarray
    per_token: np.ndarray
    dropped: int
    common: int | None
    either: int | None

    @property
    def assignments(self) -> int:
        """Assignments that were kept, or slots."""
        return int(self.rows.sum())


class Routed:
    """The sum of the outcomes of many steps, for ``layers`` executed layers of ``num_experts`` experts."""

    def __init__(self, layers: int, num_experts: int) -> None:
        self.expert_assignments = np.zeros((layers, num_experts), np.int64)
        self.per_token = np.zeros(num_experts + 1, np.int64)
        self.rows_per_expert = np.zeros(64, np.int64)
        self.dropped, self.common, self.either = 0, 0, 0
        self.has_own_experts = True
        #: Assignments [E] of groups of as many successive steps each; the last may have fewer.
        self.over_time: list[np.ndarray] = []
        self.group, self._in_group = 1, 0

    def add(self, outcome: Outcome) -> None:
        self.expert_assignments += outcome.rows
        self.per_token += outcome.per_token
        # 0, 1, 2 to 3, 4 to 7, …: the number of binary digits
        self.rows_per_expert += np.bincount(np.frexp(outcome.rows)[1].ravel(), minlength=64)
        self.dropped += outcome.dropped
        if outcome.common is None or outcome.either is None:
            self.has_own_experts = False
        else:
            self.common += outcome.common
            self.either += outcome.either
        self._add_to_time(outcome.rows.sum(axis=0))

    def _add_to_time(self, rows: np.ndarray) -> None:
        """Groups grow to twice their size whenever there are too many: any number of steps takes the same room."""
        if self._in_group in (0, self.group):
            if len(self.over_time) == MAX_GROUPS:
                self.over_time = [a + b for a, b in zip(self.over_time[::2], self.over_time[1::2], strict=True)]
                self.group *= 2
            self.over_time.append(np.zeros_like(rows))
            self._in_group = 0
        self.over_time[-1] += rows
        self._in_group += 1

    def outcome(self, causal: bool) -> RoutingOutcome:
        return RoutingOutcome(
            assignments=int(self.expert_assignments.sum()),
            dropped=self.dropped,
            experts_per_token=_without_zeros_at_the_end(self.per_token),
            rows_per_expert=_without_zeros_at_the_end(self.rows_per_expert),
            expert_assignments_over_time=[group.tolist() for group in self.over_time],
            steps_per_group=self.group,
            expert_overlap=self.common / self.either if self.has_own_experts and self.either else None,
            causal=causal,
        )


def _without_zeros_at_the_end(counts: np.ndarray) -> list[int]:
    return np.trim_zeros(counts, "b").tolist()
