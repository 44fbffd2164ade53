"""Copies of weighted items, and items into packs of equal counts: the two greedy halves of EPLB. Torch-free.

From the published description (https://github.com/deepseek-ai/EPLB), for many problems at once.

Shapes: ``B`` independent problems (layers, or layers and nodes), ``X`` items, ``K`` packs.
"""

from __future__ import annotations

import numpy as np


def pack(weight: np.ndarray, num_packs: int) -> np.ndarray:
    """Items of ``weight`` [B, X] into packs of equal counts: heaviest first, each into the lightest pack with room.

    Returns the items int64 [B, X], pack after pack.
    """
    problems, items = weight.shape
    size = items // num_packs
    every = np.arange(problems)
    loads = np.zeros((problems, num_packs))
    counts = np.zeros((problems, num_packs), dtype=np.int64)
    packed = np.empty((problems, items), dtype=np.int64)
    for item in np.argsort(-weight, axis=1, kind="stable").T:
        lightest = np.where(counts < size, loads, np.inf).argmin(axis=1)
        packed[every, lightest * size + counts[every, lightest]] = item
        counts[every, lightest] += 1
        loads[every, lightest] += weight[every, item]
    return packed


def replicate(weight: np.ndarray, redundant: int) -> tuple[np.ndarray, np.ndarray]:
    """Copies of items with ``weight`` [B, X]: each of ``redundant`` more goes to the item with the most weight a copy.

    Returns the item of each copy, int64 [B, X + redundant], and the copies of each item, int64 [B, X].
    """
    problems, items = weight.shape
    every = np.arange(problems)
    copies = np.ones((problems, items), dtype=np.int64)
    copy_of = np.concatenate(
        [np.tile(np.arange(items), (problems, 1)), np.empty((problems, redundant), dtype=np.int64)], axis=1
    )
    for place in range(items, items + redundant):
        heaviest = (weight / copies).argmax(axis=1)
        copy_of[:, place] = heaviest
        copies[every, heaviest] += 1
    return copy_of, copies


def copies_of(logical: np.ndarray, num_experts: int) -> np.ndarray:
    """How often each expert stands in ``logical`` [L, P]: int64 [L, E]."""
    layers = len(logical)
    flat = logical + np.arange(layers)[:, None] * num_experts
    return np.bincount(flat.ravel(), minlength=layers * num_experts).reshape(layers, num_experts)
