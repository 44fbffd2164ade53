"""Experts near the ranks whose tokens choose them, within a bound on the load of ranks and nodes. Torch-free.

Shapes: ``L`` layers, ``R`` ranks, ``S`` slots a rank, ``P`` = R · S slots, ``E`` experts, ``C`` pairs of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice

import numpy as np

from bench_worker.parallel.packing import copies_of

#: A rank or node may carry so much more than the mean, or what the placement before gave to one, if that is more.
SLACK = 0.1
#: A wire between nodes is about nine times slower than one inside (400 Gbit/s against 450 GB/s of NVLink): a byte that
#: stays in its node saves 8 of 9 parts, one that stays on its rank the ninth, too.
OWN_RANK_PART = 1 / 9
#: Rounds of meetings; 256 ranks have all met after 255, and 8 ranks have met 36 times.
ROUNDS = 256


def near(logical: np.ndarray, load: np.ndarray, source_load: np.ndarray, num_nodes: int) -> np.ndarray:
    """Swap experts between ranks where that saves transfers.

    ``logical`` [L, P]: the expert of each slot, S slots a rank. ``load`` [L, E]; ``source_load`` [L, R, E]: assignments
    by the rank of their token. Every two ranks meet in turn, as in a tournament, and swap the two experts whose swap
    saves most, where neither they nor their nodes then carry more than `SLACK` allows. So no rank or node ends above
    its bound, and transfers never grow. Returns the new [L, P].
    """
    layers, ranks, experts = source_load.shape
    in_node = ranks // num_nodes
    slots = logical.reshape(layers, ranks, -1).copy()
    copies = copies_of(logical, experts)
    weight = load / copies
    wish = _wish(source_load, num_nodes) / copies[:, None]
    rank_load = np.take_along_axis(weight, logical, axis=1).reshape(slots.shape).sum(axis=2)
    rank_bound, node_bound = _bound(rank_load), _bound(_node_load(rank_load, num_nodes))
    layer = np.arange(layers)[:, None, None]
    for a, b in islice(cycle(meetings(ranks)), ROUNDS):
        here, there = slots[:, a], slots[:, b]  # [L, C, S]
        gives = wish[layer, b[:, None], here] - wish[layer, a[:, None], here]
        takes = wish[layer, a[:, None], there] - wish[layer, b[:, None], there]
        saved = gives[..., :, None] + takes[..., None, :]  # [L, C, S, S]
        more = weight[layer, there][..., None, :] - weight[layer, here][..., :, None]  # what a then carries more
        # as many pairs as a node has ranks may bring it load in one round, so each has its part of what is left
        left = (node_bound - _node_load(rank_load, num_nodes)) / in_node
        a_node, b_node = a // in_node, b // in_node
        room_a, room_b = (
            np.minimum(rank_bound - rank_load[:, rank], np.where(a_node == b_node, np.inf, left[:, node]))
            for rank, node in ((a, a_node), (b, b_node))
        )
        allowed = (more <= room_a[..., None, None]) & (-more <= room_b[..., None, None])
        saved = np.where(allowed, saved, 0.0).reshape(layers, len(a), -1)
        best = saved.argmax(axis=2)
        rows, pair = (np.take_along_axis(saved, best[..., None], axis=2)[..., 0] > 1e-9).nonzero()
        i, j = np.divmod(best[rows, pair], slots.shape[2])
        leaves, comes = here[rows, pair, i], there[rows, pair, j]
        slots[rows, a[pair], i], slots[rows, b[pair], j] = comes, leaves
        change = weight[rows, comes] - weight[rows, leaves]
        rank_load[rows, a[pair]] += change
        rank_load[rows, b[pair]] -= change
    return slots.reshape(layers, -1)


def meetings(ranks: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rounds after which every rank has met every other once: the ranks of each pair, int64 [C] both. The first stays
    in its seat while the others move on by one (the circle method); with an odd number one sits out."""
    return list(_meetings(ranks))


def _meetings(ranks: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    seats = np.arange(ranks + ranks % 2)
    for _ in range(len(seats) - 1):
        a, b = seats[: len(seats) // 2], seats[::-1][: len(seats) // 2]
        real = (a < ranks) & (b < ranks)
        if real.any():
            yield a[real], b[real]
        seats = np.concatenate([seats[:1], np.roll(seats[1:], 1)])


def _wish(source_load: np.ndarray, num_nodes: int) -> np.ndarray:
    """What it saves to have an expert on a rank, [L, R, E]: mostly what its node asks for, and what it asks itself."""
    layers, ranks, experts = source_load.shape
    of_node = source_load.reshape(layers, num_nodes, -1, experts).sum(axis=2).repeat(ranks // num_nodes, axis=1)
    return (1 - OWN_RANK_PART) * of_node + OWN_RANK_PART * source_load


def _node_load(rank_load: np.ndarray, num_nodes: int) -> np.ndarray:
    return rank_load.reshape(len(rank_load), num_nodes, -1).sum(axis=2)


def _bound(loads: np.ndarray) -> np.ndarray:
    """The most that each of ``loads`` [L, …] may become, [L, 1]."""
    return np.maximum(loads.max(axis=1), (1 + SLACK) * loads.mean(axis=1))[:, None]
