"""What a run's raw times say about the machine: how near it came to its limits, and how steady it was. Pure.

Arrays run over steps [S]; times are for one MoE layer, or for the part of the model that a stage is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bench_worker import noise
from bench_worker.result import Limit, Noise
from bench_worker.roofline import Limits, Work, bound
from bench_worker.scaling import top, travels

__all__ = ["full_batch_note", "limits_of", "noise_of", "over_the_ceiling_note"]

#: A share of a floor above this means that a ceiling is too low, or that weights were still in the cache.
MOST_SHARE = 1.05
#: An active expert with at most so many rows in a step makes poor use of the weights that are read for it.
FEW_ROWS = 2
#: A step whose active experts have so many rows each on average counts as a full batch.
FULL_ROWS = 16


def limits_of(
    times_us: Mapping[str, np.ndarray],
    work: Mapping[str, Sequence[Work]],
    parts: Mapping[str, int],
    limits: Limits,
) -> dict[str, Limit]:
    """Each stage against the floor of its work.

    ``work`` [S] of each leaf stage is a sum over ``parts`` of them (the executed layers); ``times_us`` [S] hold leaves
    and the stages that they sum to. A stage's floor is the sum of its leaves' floors. Transfers between ranks have
    none, and a stage is held against its floor without the time that it spends in them.
    """
    found = {}
    for stage in times_us:
        times = _computing_us(stage, times_us)
        leaves = [leaf for leaf in work if leaf == stage or leaf.startswith(f"{stage}.")]
        if not leaves or times.sum() <= 0:
            continue
        own = {leaf: [_bytes_of_one(step, parts[leaf]) for step in work[leaf]] for leaf in leaves}
        memory = np.zeros((len(leaves), times.size))
        compute = np.zeros_like(memory)
        for row, leaf in enumerate(leaves):
            memory[row] = [limits.memory_us(step) for step in own[leaf]]
            compute[row] = [limits.compute_us(step) / parts[leaf] for step in work[leaf]]
        floor = np.maximum(memory, compute).sum(axis=0)
        flops = sum(step.flops / parts[leaf] for leaf in leaves for step in work[leaf])
        moved = sum(limits.moved_bytes(step) for leaf in leaves for step in own[leaf])
        found[stage] = Limit(
            floor_us=float(np.median(floor)),
            share=float(floor.sum() / times.sum()),
            bound=bound(memory[memory >= compute].sum(), compute[memory < compute].sum(), times.sum()),
            flops_per_s=float(flops / times.sum() * 1e6),
            intensity=float(flops / moved) if moved else None,
            by_memory=_by_memory(memory.sum(axis=0), compute.sum(axis=0), times),
        )
    return found


def _bytes_of_one(work: Work, parts: int) -> Work:
    """``work`` with the bytes of one of its ``parts``, each of which may find its rows in the cache."""
    return replace(
        work,
        weight_bytes=work.weight_bytes / parts,
        row_bytes=work.row_bytes / parts,
        reread_bytes=work.reread_bytes / parts,
    )


def _computing_us(stage: str, times_us: Mapping[str, np.ndarray]) -> np.ndarray:
    """Times [S] of a stage without those of its leaves that are transfers between ranks."""
    leaves = {leaf: times for leaf, times in times_us.items() if top(leaf) == stage != leaf}
    if not any(map(travels, leaves)):
        return times_us[stage]
    return times_us[stage] - np.sum([times for leaf, times in leaves.items() if travels(leaf)], axis=0)


def _by_memory(memory: np.ndarray, compute: np.ndarray, times: np.ndarray) -> float | None:
    """`bench_worker.result.Limit.by_memory` from [S] each; None where the work takes no time at best."""
    both = memory + compute
    if not np.any(both > 0):
        return None
    return float((times * np.divide(memory, both, out=np.zeros_like(both), where=both > 0)).sum() / times.sum())


def noise_of(layer_us: np.ndarray, floor_us: np.ndarray, tokens: np.ndarray) -> Noise:
    """The noise of a run, from each step's ``layer_us`` in proportion to its ``floor_us``, which knows how many experts
    were active, against the steps of as many ``tokens``."""
    per_floor = layer_us / floor_us if np.all(floor_us > 0) else layer_us
    ratios = noise.relative_to_like(per_floor, tokens)
    return noise.classify(ratios).model_copy(update={"warming_steps": noise.warming_steps(ratios)})


def over_the_ceiling_note(limits: Mapping[str, Limit]) -> str | None:
    over = {stage: limit.share for stage, limit in limits.items() if limit.share > MOST_SHARE and "." not in stage}
    if not over:
        return None
    stage = max(over, key=lambda name: over[name])
    return (
        f"{stage} reached {over[stage]:.0%} of the measured ceiling: the ceiling is too low (calibrate again on an "
        "idle machine), or weights stayed in the cache from step to step."
    )


def full_batch_note(rows: np.ndarray, active: np.ndarray, few: np.ndarray, experts_us: np.ndarray) -> str | None:
    """What small decode batches cost, where most active experts had one or two rows.

    ``rows`` [S] of all experts of a layer, ``active`` [S] experts with rows, ``few`` [S] of them with at most
    `FEW_ROWS`, ``experts_us`` [S] time of the experts stage.
    """
    small = few > active / 2
    if not small.any() or few[small].sum() <= active.sum() / 2:
        return None
    note = (
        f"Small decode batches: {few.sum() / active.sum():.0%} of the active experts had one or two rows in their "
        f"step, and a row took {_per_row(experts_us[small], rows[small]):.1f} µs of the experts"
    )
    full = rows >= FULL_ROWS * active
    if not full.any():
        return f"{note}."
    cost = _per_row(experts_us[full], rows[full])
    times = _per_row(experts_us[small], rows[small]) / cost
    return f"{note}, {times:.1f}× as much as in a full batch ({cost:.1f} µs at {rows[full].mean():,.0f} rows a layer)."


def _per_row(times_us: np.ndarray, rows: np.ndarray) -> float:
    return float(times_us.sum() / rows.sum())
