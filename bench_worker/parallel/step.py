"""What a step on several ranks came to, whichever way it was executed. Pure; torch-free.

Shapes: ``L`` executed layers, ``R`` ranks, ``E`` experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from bench_worker.outcome import Outcome
from bench_worker.parallel.timeline import Timeline
from bench_worker.parallel.topology import domains
from bench_worker.result import Domain
from bench_worker.roofline import Work

__all__ = ["ParallelStep", "bytes_by_domain", "sent_by_domain", "together"]


@dataclass(frozen=True)
class ParallelStep:
    """``rows`` int64 [L, R, R] from the rank of the row to that of the column; ``computed`` int64 [R] rows on each
    rank, padding included, over all layers; ``work`` of each rank's experts, where they ran. ``group_bytes`` int64
    [R, R]: what the collectives of tensor-parallel groups send from rank to rank, where there are any."""

    rows: np.ndarray
    computed: np.ndarray
    outcome: Outcome
    timeline: Timeline
    work: list[dict[str, Work]] = field(default_factory=list)
    group_bytes: np.ndarray | None = None


@dataclass(frozen=True)
class Whole:
    """A step timed as one piece: from the first rank's start to the last one's end, and what each of [R] spent around
    its MoE layers."""

    span_us: float
    around_us: np.ndarray

    def layers_us(self, rank: int) -> float:
        """What is left for the MoE layers, waiting included, on ``rank``."""
        return self.span_us - float(self.around_us[rank])


def bytes_by_domain(sent: np.ndarray, nodes: np.ndarray) -> dict[Domain, np.ndarray]:
    """Bytes int64 [R] that each rank sends, dispatch and combine together, by domain, where ``sent`` int64 [R, R] are
    dispatched; combine sends as many the other way. ``nodes`` [R]: the node of each rank."""
    return sent_by_domain(sent + sent.T, nodes)


def sent_by_domain(sent: np.ndarray, nodes: np.ndarray) -> dict[Domain, np.ndarray]:
    """Bytes int64 [R] that each rank sends, by domain; ``sent`` int64 [R, R] go from the row's rank to the column's."""
    pairs = domains(nodes)
    return {domain: np.where(pairs[domain], sent, 0).sum(axis=1) for domain in get_args(Domain)}


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of a step of which each rank routed its own tokens."""
    own = [outcome for outcome in outcomes if outcome.common is not None and outcome.either is not None]
    comparable = len(own) == len(outcomes)
    return Outcome(
        rows=np.sum([outcome.rows for outcome in outcomes], axis=0),
        per_token=np.sum([outcome.per_token for outcome in outcomes], axis=0),
        dropped=sum(outcome.dropped for outcome in outcomes),
        common=sum(outcome.common or 0 for outcome in own) if comparable else None,
        either=sum(outcome.either or 0 for outcome in own) if comparable else None,
    )
