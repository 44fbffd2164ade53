"""TP x DP ranks, which are one expert-parallel group, and the nodes that they stand on. Pure; torch-free.

Shapes: ``R = TP · DP`` ranks, ``T`` tokens of a step.

Attention runs in DP groups of TP ranks each; the experts are spread over all of them (EP = R). Rank r is member
r mod TP of group ⌊r / TP⌋, and nodes hold equally many ranks, in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Layout:
    """``nodes`` divides the ranks."""

    tp: int
    dp: int
    nodes: int

    @property
    def num_ranks(self) -> int:
        return self.tp * self.dp

    def node_of_rank(self) -> np.ndarray:
        """int64 [R]."""
        return np.arange(self.num_ranks) // (self.num_ranks // self.nodes)

    def group_of_rank(self) -> np.ndarray:
        """int64 [R]: the DP group, whose ranks share one attention."""
        return np.arange(self.num_ranks) // self.tp

    def group_of_request(self, requests: np.ndarray) -> np.ndarray:
        """The DP group of each of ``requests`` int64 [n]: its index modulo DP."""
        return requests % self.dp

    def rows_of_groups(self, requests: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
        """The rows [T_g] of a step that each DP group attends to, in ascending order; every row belongs to one.

        The step's segments belong to ``requests`` [n] and have ``lengths`` [n] rows each, one after the other.
        """
        group = np.repeat(self.group_of_request(requests), lengths)
        return [np.flatnonzero(group == own) for own in range(self.dp)]

    def rows_of_ranks(self, requests: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
        """The rows [T_r] of a step that each rank routes and dispatches, in ascending order; every row belongs to one.

        All ranks of a group hold all of its tokens after attention; so that each is dispatched once, rank after rank
        takes an equal part of them, the first ones one more.
        """
        return [part for rows in self.rows_of_groups(requests, lengths) for part in np.array_split(rows, self.tp)]
