"""Weights of a layer as the kernels read them, and the interface of an expert backend.

Shapes: ``H`` hidden, ``I`` expert intermediate, ``E`` experts, ``N`` packed rows, grouped by expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bench_worker.spec import Spec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class ExpertWeights:
    """``gate_up`` [E, 2I, H] holds the gate rows, then the up rows, of each expert; ``down`` [E, H, I]."""

    gate_up: Tensor
    down: Tensor

    @property
    def gate(self) -> Tensor:
        return self.gate_up[:, : self.gate_up.shape[1] // 2]

    @property
    def up(self) -> Tensor:
        return self.gate_up[:, self.gate_up.shape[1] // 2 :]


class ExpertBackend(Protocol):
    """Runs all experts over rows that are grouped by expert. Construct with weights that outlive the backend."""

    def __init__(self, weights: ExpertWeights, activation: str, fusion: str) -> None: ...

    @staticmethod
    def supports(spec: Spec, device: torch.device) -> str | None:
        """None where the backend can run ``spec`` on ``device``, else one sentence that says why not."""
        ...

    def __call__(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Expert outputs [N, H] of ``rows`` [N, H]; ``counts`` int64 [E] rows belong to each expert, in order."""
        ...
