"""What virtual ranks cost beside the expert work that is executed. Quoted in docs/placement.md.

DeepSeek-V3's sizes on 256 ranks: 58 MoE layers of 256 experts, one redundant expert a rank, 32 nodes of 8.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from bench_worker.parallel.placement import POLICIES, Placement, place
from bench_worker.parallel.replicas import Replicas
from bench_worker.parallel.topology import Topology, load_topology
from bench_worker.workload.scores import gumbel_scores, popularity

LAYERS, EXPERTS, TOP_K, ROW_BYTES = 58, 256, 8, 2 * 7168
RANKS, NODES, REDUNDANT, TOKENS, REPEATS = 256, 32, 256, 4096, 5
T = TypeVar("T")


def section() -> None:
    nodes = np.arange(RANKS) // (RANKS // NODES)
    experts = [_chosen(layer) for layer in range(LAYERS)]  # [L] of [T · k]
    sources = torch.arange(TOKENS).repeat_interleave(TOP_K) * RANKS // TOKENS
    load = np.stack([np.bincount(expert.numpy(), minlength=EXPERTS) for expert in experts])
    by_rank = np.stack([_by_rank(expert, sources) for expert in experts])
    print(f"{RANKS} virtual ranks on {NODES} nodes, {LAYERS} layers of {EXPERTS} experts, {TOKENS:,} tokens a step")
    print(f"{'':>42}{'seconds':>10}{'imbalance':>11}{'between nodes':>15}")
    for policy in POLICIES:
        source_load = by_rank if policy == "locality" else None
        seconds, placement = _timed(partial(place, load, RANKS, policy, REDUNDANT, NODES, source_load=source_load))
        sent = _sent(placement, experts, sources)
        away = float(sent[:, nodes[:, None] != nodes].sum() / sent.sum())
        imbalance = placement.imbalance(load).mean()
        print(f"{f'placing all layers once, {policy}':>42}{seconds:>10.3f}{imbalance:>11.3f}{away:>15.1%}")
    seconds, sent = _timed(partial(_sent, placement, experts, sources))
    print(f"{'choosing copies and counting, a step':>42}{seconds:>10.3f}")
    both = partial(_exchanged, load_topology(), sent * ROW_BYTES, nodes)
    seconds, _ = _timed(both)
    print(f"{'the network, dispatch and combine, a step':>42}{seconds:>10.3f}")
    print()


def _chosen(layer: int) -> torch.Tensor:
    """Experts int64 [T · k] that tokens choose in a layer, token by token; which are hot differs by layer."""
    weights = popularity("zipf", EXPERTS, 0.8, layer)
    generator = torch.Generator().manual_seed(layer)
    return gumbel_scores(weights, TOKENS, generator).topk(TOP_K).indices.flatten()


def _by_rank(expert: torch.Tensor, source: torch.Tensor) -> np.ndarray:
    return torch.bincount(source * EXPERTS + expert, minlength=RANKS * EXPERTS).view(RANKS, EXPERTS).numpy()


def _sent(placement: Placement, experts: list[torch.Tensor], source: torch.Tensor) -> np.ndarray:
    """Rows int64 [L, R, R] from rank to rank."""
    slots = placement.physical_to_logical.shape[1] // RANKS
    rows = []
    for logical, expert in zip(placement.physical_to_logical, experts, strict=True):
        to = Replicas(logical, EXPERTS, expert.device).physical(expert, source) // slots
        rows.append(torch.bincount(source * RANKS + to, minlength=RANKS**2).view(RANKS, RANKS).numpy())
    return np.stack(rows)


def _exchanged(topology: Topology, sent: np.ndarray, nodes: np.ndarray) -> list[np.ndarray]:
    """Times [L, R] of dispatch and of combine."""
    return [topology.exchange_us(sent, nodes), topology.exchange_us(sent.swapaxes(1, 2), nodes, "combine")]


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    """Median seconds that ``work`` took, and what it gave."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), found
