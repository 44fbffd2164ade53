"""From what was measured on each rank to its part of a result. Pure: no clock, no tensor.

Shapes: ``S`` steps, ``L`` executed layers, ``R`` ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench_worker.result import Domain, RankSteps
from bench_worker.scaling import top, with_stages

__all__ = ["RankStep", "dispatched_bytes", "idle_share", "imbalance", "rank_steps"]


@dataclass(frozen=True)
class RankStep:
    """One step. ``load`` int64 [L, R]: rows that each rank's experts got; ``rows`` int64 [R] that they computed,
    padding included. Times [R] in µs and bytes [R] are sums over the layers; ``dispatched_bytes`` int64 [R, R] went
    from the rank of the row to that of the column. ``group_bytes`` are beside ``bytes``: those of the collectives of
    tensor-parallel groups, empty where there are none."""

    load: np.ndarray
    rows: np.ndarray
    stages_us: dict[str, np.ndarray]
    idle_us: np.ndarray
    bytes: dict[Domain, np.ndarray]
    dispatched_bytes: np.ndarray
    group_bytes: dict[Domain, np.ndarray] = field(default_factory=dict)


def rank_steps(steps: Sequence[RankStep], layers: int) -> list[RankSteps]:
    """The columns of each rank; times for one of ``layers``."""
    leaves = {
        stage: np.array([step.stages_us[stage] for step in steps]) / (1 if top(stage) == "other" else layers)
        for stage in steps[0].stages_us
    }
    stages = with_stages(leaves)
    idle = np.array([step.idle_us for step in steps]) / layers
    assignments = np.array([step.load.sum(axis=0) for step in steps])
    rows = np.array([step.rows for step in steps])
    sent = {domain: np.array([step.bytes[domain] for step in steps]) for domain in steps[0].bytes}
    group = {domain: np.array([step.group_bytes[domain] for step in steps]) for domain in steps[0].group_bytes}
    return [
        RankSteps(
            rank=rank,
            assignments=assignments[:, rank].tolist(),
            rows=rows[:, rank].tolist(),
            stages_us={stage: np.round(times[:, rank], 3).tolist() for stage, times in stages.items()},
            idle_us=np.round(idle[:, rank], 3).tolist(),
            bytes={domain: counts[:, rank].tolist() for domain, counts in sent.items()},
            group_bytes={domain: counts[:, rank].tolist() for domain, counts in group.items()},
        )
        for rank in range(len(steps[0].rows))
    ]


def dispatched_bytes(steps: Sequence[RankStep]) -> np.ndarray:
    """Bytes int64 [R, R] from rank to rank over all steps."""
    return np.sum([step.dispatched_bytes for step in steps], axis=0)


def imbalance(steps: Sequence[RankStep]) -> float:
    """Max / mean rank load over all steps, mean over layers."""
    load = np.sum([step.load for step in steps], axis=0)
    mean = load.mean(axis=1)
    return float(np.mean(np.divide(load.max(axis=1), mean, out=np.ones(len(load)), where=mean > 0)))


def idle_share(steps: Sequence[RankStep]) -> float:
    """Share of all ranks' time that is waiting."""
    idle = sum(float(step.idle_us.sum()) for step in steps)
    busy = sum(float(np.sum(list(step.stages_us.values()))) for step in steps)
    return idle / (idle + busy) if idle + busy else 0.0
