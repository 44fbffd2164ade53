"""Who waits for whom: from the marks of every rank's clock to its stages and its idle time. Pure; torch-free.

Shapes: ``R`` ranks, ``M`` marks of a step, which all ranks make in the same order.

An all-to-all ends on no rank before the last one has come to it. So a rank's time in it has two parts: waiting for the
last to arrive (idle), and the transfer itself. A collective of a tensor-parallel group ends likewise, within the group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench_worker.scaling import IDLE, LAYER, UNTIMED, in_group, travels

__all__ = ["Timeline", "measured", "modelled"]

#: Marks of no stage: their spans hold nothing, or what is not to be timed.
NO_STAGE = (UNTIMED, LAYER)


@dataclass(frozen=True)
class Timeline:
    """``stages_us``: each stage's time [R], summed over its marks; ``idle_us`` [R]. On every rank they sum to the same
    span, from the first rank's start to the last one's end."""

    stages_us: dict[str, np.ndarray]
    idle_us: np.ndarray

    @property
    def slowest(self) -> int:
        """The rank that waits least, so that the others wait for it."""
        return int(np.argmin(self.idle_us))

    def of_slowest(self) -> dict[str, float]:
        """The stages of the slowest rank, and its ``idle``: they sum to the span of the step."""
        rank = self.slowest
        return {stage: float(times[rank]) for stage, times in self.stages_us.items()} | {
            IDLE: float(self.idle_us[rank])
        }


def modelled(
    names: Sequence[str],
    spans_us: np.ndarray,
    transfers_us: Mapping[str, Sequence[np.ndarray]],
    groups: np.ndarray | None = None,
) -> Timeline:
    """``spans_us`` [R, M] were measured rank after rank, and a transfer's own span means nothing: the k-th one of a
    name takes ``transfers_us[name][k]`` [R]. ``groups`` int64 [R]: the tensor-parallel group of each rank."""
    now = np.zeros(len(spans_us))
    stages, idle = _no_times(names, len(now)), np.zeros(len(now))
    left = {name: iter(times) for name, times in transfers_us.items()}
    for name, spans in zip(names, spans_us.T, strict=True):
        if travels(name):
            last = _last(now, name, groups)
            idle += last - now
            spans = next(left[name])
            now = last + spans
        elif name not in NO_STAGE:
            now = now + spans
        if name not in NO_STAGE:
            stages[name] += spans
    return Timeline(stages, idle + now.max() - now)


def measured(
    names: Sequence[str], starts_us: np.ndarray, spans_us: np.ndarray, groups: np.ndarray | None = None
) -> Timeline:
    """``spans_us`` [R, M] ran side by side, from ``starts_us`` [R] on a common clock; a transfer's span holds both
    waiting and transfer. What lies outside of stages counts as idle. ``groups`` as for `modelled`."""
    ends = starts_us[:, None] + spans_us.cumsum(axis=1)
    stages = _no_times(names, len(starts_us))
    for place, name in enumerate(names):
        if travels(name):
            last = _last(ends[:, place - 1], name, groups)
            # A rank that has all it needs before the last one arrives (by the clocks' error) has no transfer left.
            stages[name] += np.maximum(0.0, ends[:, place] - last)
        elif name not in NO_STAGE:
            stages[name] += spans_us[:, place]
    busy = np.sum(list(stages.values()), axis=0)
    return Timeline(stages, np.maximum(0.0, ends[:, -1].max() - starts_us.min() - busy))


def _last(arrived_us: np.ndarray, name: str, groups: np.ndarray | None) -> np.ndarray:
    """When the last rank that takes part in the transfer ``name`` has come to it, for each rank [R]."""
    if groups is None or not in_group(name):
        return np.full(len(arrived_us), arrived_us.max())
    last = np.full(groups.max() + 1, -np.inf)
    np.maximum.at(last, groups, arrived_us)
    return last[groups]


def _no_times(names: Sequence[str], ranks: int) -> dict[str, np.ndarray]:
    return {name: np.zeros(ranks) for name in names if name not in NO_STAGE}
