"""From the expert that a token chose to the copy of it that computes: the placement, as the kernels use it.

Shapes: ``N`` assignments, ``E`` logical and ``P`` physical experts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Replicas:
    """The copies of each expert in one layer, ``physical_to_logical`` [P].

    Copies share an expert's rows evenly: on each rank the assignments to an expert take its copies in turn, and rank r
    starts with copy r, so that ranks with few rows don't all choose the first. Which logical expert computes a row
    never changes.
    """

    def __init__(self, physical_to_logical: np.ndarray, num_experts: int, device: torch.device) -> None:
        copies = np.bincount(physical_to_logical, minlength=num_experts)
        if (copies == 0).any():
            raise ValueError(f"expert {int(np.argmin(copies))} has no copy in this placement")
        self.num_experts = num_experts
        self._by_expert = torch.from_numpy(np.argsort(physical_to_logical, kind="stable")).to(device)
        self._copies = torch.from_numpy(copies).to(device)
        self._first = torch.from_numpy(np.cumsum(copies) - copies).to(device)
        self._has_copies = bool((copies > 1).any())

    def physical(self, expert: Tensor, rank: Tensor | int) -> Tensor:
        """The physical expert int64 [N] of each assignment to ``expert`` int64 [N] that ``rank`` (one, or [N]) makes,
        in token order."""
        if not self._has_copies:
            return self._by_expert[self._first[expert]]
        key = expert if isinstance(rank, int) else rank * self.num_experts + expert
        ascending, order = key.sort(stable=True)
        number = torch.empty_like(order)
        number[order] = torch.arange(order.numel(), device=order.device) - torch.searchsorted(ascending, ascending)
        return self._by_expert[self._first[expert] + (number + rank) % self._copies[expert]]
