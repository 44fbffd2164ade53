"""The load of experts as a heat map (pure): levels against an even share, small enough to be told apart.

Shapes: ``N`` steps or layers, ``E`` experts.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import numpy as np

from webapp.ui.formatting import number

#: Levels of a heat map: an expert's load in even shares (the load of all / E), to the nearest power of two.
LEVELS = ("none", "¼ or less", "½", "an even share", "2×", "4×", "8× or more")
#: More experts, or more columns, than this can't be told apart in a heat map.
MAX_EXPERTS, MAX_COLUMNS = 128, 64


class Map(NamedTuple):
    """The load of the experts over something else. ``levels`` int [E, …] of `LEVELS`; ``label`` says it in words,
    ``caption`` what the rows and columns are."""

    levels: np.ndarray
    label: str
    caption: str


def map_of(load: np.ndarray, noun: str, count: int, group: int, where: str) -> Map:
    """Of a ``load`` [N, E] over ``count`` steps or layers, ``group`` in each of the N. Neighbours share a cell where
    there are too many: columns their sum, experts the larger level."""
    num_experts, total = load.shape[1], load.sum(axis=0)
    experts, columns = ceil(num_experts / MAX_EXPERTS), ceil(len(load) / MAX_COLUMNS)
    together = np.add.reduceat(load, range(0, len(load), columns), axis=0)
    cells = np.maximum.reduceat(levels(together), range(0, num_experts, experts), axis=0)
    idle = int((total == 0).sum())
    return Map(
        levels=cells,
        label=f"Load of {num_experts} experts by {noun}, {where}: the hottest has {number(total.max() / total.mean())} "
        f"times an even share, {idle or 'none'} {'gets' if idle == 1 else 'get'} nothing.",
        caption=f"{num_experts} experts, top to bottom{_of_each(experts, 'the hottest of each')}; {count:,} "
        f"{noun}{'s' if count > 1 else ''}, left to right{_of_each(columns * group, 'a column for each')}",
    )


def levels(load: np.ndarray) -> np.ndarray:
    """The level of each cell, by `LEVELS`, of a ``load`` [N, E], as int [E, N]: each of the N by its own even share."""
    even = load.mean(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        nearest = np.round(np.log2(load / even))
    return np.where(load > 0, np.clip(nearest, -2, 3) + 3, 0).astype(int).T


def _of_each(number: int, words: str) -> str:
    return f", {words} {number}" if number > 1 else ""
