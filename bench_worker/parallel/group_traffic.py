"""What the ranks of a tensor-parallel group send one another around the MoE layers, and how long it takes by a model of
the network. Pure; torch-free.

Shapes: ``R`` ranks in ``DP`` groups of ``t`` (TP).

An all-reduce of B bytes is a reduce-scatter and an all-gather (Rabenseifner 2004; Patarasuk and Yuan 2009): in each
half every rank sends B/t to each of the t − 1 others, which makes 2·(t − 1)/t·B a rank, the least that is possible and
what a ring sends, too. An all-gather sends a rank's own rows to each of the others. Parts are as large as the largest,
as engines pad them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bench_worker.parallel.layout import Layout
from bench_worker.parallel.topology import Topology
from bench_worker.scaling import in_group

__all__ = ["GroupTraffic"]


@dataclass(frozen=True)
class GroupTraffic:
    """One step. ``tokens`` and ``yields`` int64 [DP]: of each group, and those of them that yield a token; bytes of one
    row of the residual stream, and of one row of a rank's logits."""

    layout: Layout
    tokens: np.ndarray
    yields: np.ndarray
    row_bytes: int
    logits_bytes: int

    def phases(self, leaf: str) -> tuple[np.ndarray, ...]:
        """Bytes int64 [R, R] from the rank of the row to that of the column, in each phase of the collective that
        ``leaf`` names."""
        tp = self.layout.tp
        if leaf.endswith(".all_reduce"):
            piece = self._to_others(-(-self.tokens * self.row_bytes // tp))
            return piece, piece
        if leaf == "other.head.all_gather":
            return (self._to_others(self.yields * self.logits_bytes),)
        return (self._to_others(-(-self.tokens // tp) * self.row_bytes),)

    def sent(self, leaves: Iterable[str]) -> np.ndarray:
        """Bytes int64 [R, R] of all collectives among the ``leaves`` of a step, one for each mark."""
        total = np.zeros((self.layout.num_ranks,) * 2, np.int64)
        for leaf, count in Counter(leaf for leaf in leaves if in_group(leaf)).items():
            total += count * np.sum(self.phases(leaf), axis=0)
        return total

    def times_us(self, topology: Topology, leaf: str) -> np.ndarray:
        """Transfer time float64 [R] in µs of one collective: each phase takes what an all-to-all of its bytes among the
        ranks of the group would, a reduce-scatter as combine does and an all-gather as dispatch does. Each group counts
        as if it were alone."""
        phases, nodes, tp = self.phases(leaf), self.layout.node_of_rank(), self.layout.tp
        us = np.zeros(self.layout.num_ranks)
        for first in range(0, len(us), tp):
            own = slice(first, first + tp)
            for place, sent in enumerate(reversed(phases)):
                us[own] += topology.exchange_us(sent[own, own], nodes[own], "combine" if place else "dispatch")
        return us

    def _to_others(self, of_group: np.ndarray) -> np.ndarray:
        """[R, R]: each rank sends as many bytes as ``of_group`` [DP] says to each other rank of its group."""
        group = self.layout.group_of_rank()
        others = (group[:, None] == group) & ~np.eye(len(group), dtype=bool)
        return np.where(others, of_group[group][:, None], 0)
