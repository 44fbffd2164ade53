"""Who runs first: variants of a closed loop take turns at every step. Pure; torch-free.

``S`` steps. A step's place in its pass decides its order, so that whoever reads a result knows it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

import numpy as np

__all__ = ["WHOLE_CLOCK_EVERY", "order", "turns", "whole_rotations"]

#: One step in this many runs once more with only the outer marks, to check that the stages sum to the layer.
WHOLE_CLOCK_EVERY = 8

Places = Sequence[int] | np.ndarray


def turns(index: Places, variants: int) -> np.ndarray:
    """Which of the ``variants`` runs first, int [S], in the steps with these places in a pass: another one from step to
    step, in whole rotations, after which it moves on by one more where the sampled steps would always start with the
    same variant."""
    places = np.asarray(index, int)
    return (places + places // lcm(WHOLE_CLOCK_EVERY, variants)) % variants


def order(step: int, variants: int) -> list[int]:
    """In which order the variants run in a step of a pass."""
    first = int(turns([step], variants)[0]) if variants else 0
    return [(first + place) % variants for place in range(variants)]


def whole_rotations(index: Places, variants: int) -> np.ndarray:
    """Which steps [S] belong to whole rotations of the ``variants`` that were measured interleaved.

    ``index`` [S]: each step's place in the schedule; it starts again with every pass, and so does the order of the
    variants. In a whole rotation each variant ran first once, and found the caches that the others left as often.
    """
    places = np.asarray(index)
    kept = np.ones(places.size, bool)
    for steps in np.split(np.arange(places.size), np.flatnonzero(np.diff(places) <= 0) + 1):
        kept[steps[steps.size - steps.size % variants :]] = False
    return kept
