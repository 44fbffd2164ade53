"""Who stands where: nodes, ranks, attention groups, and the experts that each rank holds (pure).

Shapes: ``R`` = TP · DP ranks, ``E`` experts, ``P`` = E + redundant physical experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from bench_worker import models
from bench_worker.parallel.placement import misfit, place
from bench_worker.spec import Spec
from bench_worker.spec_fields import Layout, Parallel

#: More ranks than this are too small to read; the first nodes are drawn, and the rest said in words.
DRAWN = 64
#: Policies that place experts without looking at their load, so that the drawing can name them beforehand.
BLIND = ("contiguous", "round_robin")
#: Runs of numbers that a rank names before it says "…".
NAMED = 4


class Rank(NamedTuple):
    """``holds``: its experts in words; ``all_of_them``: the same in full, for who points at it."""

    number: int
    holds: str
    all_of_them: str


class Group(NamedTuple):
    """The ranks of one attention group on one node."""

    number: int
    ranks: list[Rank]


class Node(NamedTuple):
    number: int
    groups: list[Group]


@dataclass(frozen=True)
class Drawing:
    """``caption`` says all of it in words; ``problem``, where there is one, why no such layout can be."""

    caption: str
    nodes: list[Node]
    #: What is not drawn, in words.
    rest: str = ""
    problem: str | None = None


def drawing(parallel: Parallel, experts: int, held: np.ndarray | None = None) -> Drawing:
    """The layout of a model with so many ``experts``; of one rank the words say all. ``held`` [R, P / R]: the experts
    of each rank in one layer, where that is known; without it they are those that the placement gives to any load, or
    only their number."""
    tp, num_nodes = parallel.layout.tp, parallel.layout.nodes
    ranks, redundant = parallel.layout.num_ranks, parallel.redundant_experts
    caption = _caption(parallel.layout, experts, redundant)
    if problem := misfit(experts, ranks, parallel.placement, redundant, num_nodes):
        return Drawing(caption, [], problem=problem.partition(": ")[2])
    if ranks == 1:
        return Drawing(caption, [])
    if held is None and parallel.placement in BLIND:
        one_layer = place(np.ones((1, experts)), ranks, parallel.placement, redundant)
        held = one_layer.physical_to_logical.reshape(ranks, -1)
    in_node, slots = ranks // num_nodes, (experts + redundant) // ranks
    shown = range(min(num_nodes, max(1, DRAWN // in_node)))
    return Drawing(
        caption=caption,
        nodes=[
            Node(node, _groups(range(node * in_node, (node + 1) * in_node)[:DRAWN], tp, held, slots)) for node in shown
        ],
        rest=_rest(num_nodes - len(shown), in_node - DRAWN),
    )


def asked(document: Mapping[str, Any]) -> Drawing | None:
    """The baseline's ranks of an experiment's ``document``; None where it has one."""
    base = Spec.model_validate(document["base"])
    if base.parallel.mode == "single":
        return None
    return drawing(base.parallel, models.load(base.model).experts)


def in_words(numbers: Sequence[int], most: int | None = None) -> str:
    """``0–15``, ``3, 7–9``; after ``most`` runs of neighbours, ``…``."""
    ordered = sorted(set(numbers))
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(ordered), key=lambda placed: placed[1] - placed[0])
    ]
    named = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs[:most]]
    return ", ".join([*named, "…"] if len(runs) > len(named) else named)


def _groups(numbers: range, tp: int, held: np.ndarray | None, slots: int) -> list[Group]:
    """The ranks of a node by their attention group."""
    return [
        Group(group, [_rank(number, held, slots) for number in members])
        for group, members in groupby(numbers, key=lambda number: number // tp)
    ]


def _rest(nodes: int, ranks: int) -> str:
    parts = [
        f"{count} more {noun}{'s' if count > 1 else ''}"
        for count, noun in ((ranks, "rank"), (nodes, "node"))
        if count > 0
    ]
    return f"And {' and '.join(parts)} alike." if parts else ""


def _rank(number: int, held: np.ndarray | None, slots: int) -> Rank:
    if held is None:
        words = f"{slots} expert{'s' if slots > 1 else ''}, by their load"
        return Rank(number, words, words)
    experts = held[number].tolist()
    return Rank(number, in_words(experts, NAMED), in_words(experts))


def _caption(layout: Layout, experts: int, redundant: int) -> str:
    tp, dp, num_nodes, ranks = layout.tp, layout.dp, layout.nodes, layout.num_ranks
    if ranks == 1:
        return f"One rank holds all {experts} experts."
    attention = f"attention in {dp} group{'s' if dp > 1 else ''} of {tp} (TP {tp} × DP {dp})"
    copies = f" and {redundant} cop{'ies' if redundant > 1 else 'y'}" if redundant else ""
    where = f" on {num_nodes} nodes" if num_nodes > 1 else ""
    return f"{ranks} ranks{where}: {attention}, {experts} experts{copies} over all of them (EP {ranks})."
