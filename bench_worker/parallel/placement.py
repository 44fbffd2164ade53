"""Which rank holds which expert: from logical experts to their physical copies, and where those lie. Torch-free.

Shapes: ``L`` layers, ``E`` logical experts, ``R`` ranks, ``P`` = E + redundant physical experts.

A placement changes where an expert is computed, never which logical expert a token gets. Imbalance is max / mean over
**ranks**; vLLM's "balancedness" is its inverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bench_worker.errors import not_one_of
from bench_worker.parallel.locality import near
from bench_worker.parallel.packing import copies_of, pack, replicate

POLICIES = ("contiguous", "round_robin", "eplb", "locality")


@dataclass(frozen=True, eq=False)
class Placement:
    """``physical_to_logical`` int64 [L, P]: the expert in each slot. ``rank_of_physical`` int64 [P]: the rank of each
    slot, P / R slots a rank, in rank order. Every expert has a slot in every layer."""

    physical_to_logical: np.ndarray
    rank_of_physical: np.ndarray
    num_experts: int

    @property
    def num_ranks(self) -> int:
        return int(self.rank_of_physical[-1]) + 1

    @cached_property
    def copies(self) -> np.ndarray:
        """How many slots each expert has: int64 [L, E]."""
        return copies_of(self.physical_to_logical, self.num_experts)

    def rank_load(self, load: np.ndarray) -> np.ndarray:
        """Load of each rank, float64 [L, R], under ``load`` [L, E], each expert's spread evenly over its copies."""
        of_slot = np.take_along_axis(load / self.copies, self.physical_to_logical, axis=1)
        return of_slot.reshape(len(load), self.num_ranks, -1).sum(axis=2)

    def imbalance(self, load: np.ndarray) -> np.ndarray:
        """Max / mean rank load [L] under ``load`` [L, E]; 1 where a layer has none."""
        ranks = self.rank_load(load)
        mean = ranks.mean(axis=1)
        return np.divide(ranks.max(axis=1), mean, out=np.ones(len(ranks)), where=mean > 0)


def place(
    load: np.ndarray,
    num_ranks: int,
    policy: str,
    redundant: int = 0,
    num_nodes: int = 1,
    num_groups: int = 1,
    source_load: np.ndarray | None = None,
) -> Placement:
    """Place experts with ``load`` [L, E] (assignments, or anything in proportion to them) on ranks.

    ``contiguous`` and ``round_robin`` don't look at the load: experts in blocks, or dealt out one by one; the first of
    them have the redundant copies, on other ranks. ``eplb`` balances the load (DeepSeek's published algorithm,
    https://github.com/deepseek-ai/EPLB): copies go to the expert with the most load a copy, then slots are packed
    greedily, heaviest first. Where ``num_nodes`` divides ``num_groups`` it first packs whole groups of experts into
    nodes, and the groups' copies stay there; otherwise all slots share one pool. ``locality`` begins with eplb's global
    placement and swaps experts towards the ranks that ask for them, by ``source_load`` [L, R, E], the assignments by
    the rank of their token (see `bench_worker.parallel.locality`); without that it stays as eplb placed them.

    Raises ``ValueError`` for sizes that don't fit together; the message names the value and what is allowed.
    """
    load = np.asarray(load, dtype=np.float64)
    if problem := misfit(load.shape[1], num_ranks, policy, redundant, num_nodes, num_groups):
        raise ValueError(problem)
    if not np.isfinite(load).all() or (load < 0).any():
        raise ValueError("load: holds a NaN, an infinity or a negative number; counts go from 0")
    if source_load is not None and source_load.shape != (len(load), num_ranks, load.shape[1]):
        raise ValueError(f"source_load: has the shape {list(source_load.shape)}; it must be [layers, ranks, experts]")
    layers, experts = load.shape
    slots = (experts + redundant) // num_ranks
    load = np.where(load.any(axis=1, keepdims=True), load, 1.0)  # without any load, all are alike
    if policy == "contiguous":
        logical = np.tile(np.arange(experts + redundant) % experts, (layers, 1))
    elif policy == "round_robin":
        logical = np.tile(_dealt(experts, redundant, num_ranks), (layers, 1))
    elif policy == "eplb":
        hierarchical = num_groups % num_nodes == 0
        logical = _eplb(load, num_ranks, redundant, *((num_nodes, num_groups) if hierarchical else (1, 1)))
    else:
        logical = _eplb(load, num_ranks, redundant, 1, 1)
        if source_load is not None:
            logical = near(logical, load, source_load, num_nodes)
    return Placement(logical, np.repeat(np.arange(num_ranks), slots), experts)


def misfit(
    num_experts: int, num_ranks: int, policy: str, redundant: int = 0, num_nodes: int = 1, num_groups: int = 1
) -> str | None:
    """Why such a placement can't be made, in one sentence; None where it can."""
    if policy not in POLICIES:
        return f"policy: {not_one_of(policy, POLICIES)}"
    for name, value in {"num_ranks": num_ranks, "num_nodes": num_nodes, "num_groups": num_groups}.items():
        if value < 1:
            return f"{name}: {value} is not allowed; it is at least 1"
    if redundant < 0:
        return f"redundant: {redundant} is not allowed; it is at least 0"
    if (total := num_experts + redundant) % num_ranks:
        return (
            f"num_ranks: {num_ranks} ranks don't divide {total} experts ({num_experts} and {redundant} redundant); "
            f"{-total % num_ranks} more redundant ones would"
        )
    if num_ranks % num_nodes:
        return f"num_nodes: {num_nodes} nodes don't divide {num_ranks} ranks"
    if num_experts % num_groups:
        return f"num_groups: {num_groups} groups don't divide {num_experts} experts"
    return None


def expert_load(ids: np.ndarray, num_experts: int) -> np.ndarray:
    """Assignments int64 [L, E] of single tokens' experts ``ids`` [T, L, k]."""
    layers = ids.shape[1]
    flat = ids.astype(np.int64) + np.arange(layers)[None, :, None] * num_experts
    return np.bincount(flat.ravel(), minlength=layers * num_experts).reshape(layers, num_experts)


@dataclass(frozen=True)
class Judged:
    """Imbalance of a placement, mean over layers: on the load that it was ``fitted`` to, and on other load of the same
    source, ``held_out`` of the fit; None where there was none. The first flatters: it is what the placement was made
    for."""

    fitted: float
    held_out: float | None


def judge(placement: Placement, fitted: np.ndarray, held_out: np.ndarray | None) -> Judged:
    """Imbalance under the load [L, E] that ``placement`` was made from, and under another."""
    other = None if held_out is None else float(placement.imbalance(held_out).mean())
    return Judged(float(placement.imbalance(fitted).mean()), other)


def _dealt(experts: int, redundant: int, num_ranks: int) -> np.ndarray:
    """Experts [P] in slot order, dealt out to ranks one by one. Copies start one expert later than the deal goes on, so
    that none lands beside its original where there are other ranks."""
    dealt = np.concatenate([np.arange(experts), (np.arange(redundant) + experts % num_ranks + 1) % experts])
    return dealt.reshape(-1, num_ranks).T.ravel()


def _eplb(load: np.ndarray, num_ranks: int, redundant: int, num_nodes: int, num_groups: int) -> np.ndarray:
    """Experts [L, P] in slot order: groups to nodes, copies within nodes, slots to the node's ranks."""
    layers, experts = load.shape
    size = experts // num_groups
    group_of = pack(load.reshape(layers, num_groups, size).sum(axis=2), num_nodes)  # [L, groups], node by node
    expert_of = (group_of[:, :, None] * size + np.arange(size)).reshape(layers * num_nodes, -1)
    in_node = np.take_along_axis(load, expert_of.reshape(layers, -1), axis=1).reshape(expert_of.shape)
    copy_of, copies = replicate(in_node, redundant // num_nodes)
    of_slot = np.take_along_axis(in_node / copies, copy_of, axis=1)
    slot_of = pack(of_slot, num_ranks // num_nodes)
    return np.take_along_axis(expert_of, np.take_along_axis(copy_of, slot_of, axis=1), axis=1).reshape(layers, -1)
