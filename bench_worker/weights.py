"""Seeded random weights. Nothing here pretends to be a trained model: only shapes, dtypes and time are real."""

from __future__ import annotations

import torch
from torch import Tensor


class Weights:
    """Makes tensors of one dtype on one device from one seed."""

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int) -> None:
        self.dtype, self.device = dtype, device
        self._generator = torch.Generator(device=device).manual_seed(seed)

    def matrix(self, *shape: int) -> Tensor:
        """Normal, with variance 1 / (last size): a product with it keeps its input's scale."""
        return self.fill(torch.empty(*shape, dtype=self.dtype, device=self.device))

    def fill(self, matrix: Tensor) -> Tensor:
        """Write what `matrix` returns into one that is there."""
        return matrix.normal_(generator=self._generator).mul_(matrix.shape[-1] ** -0.5)

    def noise(self, *shape: int) -> Tensor:
        """Standard normal. KV caches start as noise: zero pages would be read from one cached page."""
        return torch.empty(*shape, dtype=self.dtype, device=self.device).normal_(generator=self._generator)

    def ones(self, size: int) -> Tensor:
        return torch.ones(size, dtype=self.dtype, device=self.device)
