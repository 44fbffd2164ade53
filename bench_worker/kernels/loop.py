"""One GEMM an expert and projection, in a Python loop: the plain way, and what every grouped kernel must beat."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bench_worker.kernels import rules
from bench_worker.kernels.base import ExpertBackend, ExpertWeights, activate
from bench_worker.spec import Spec


class Loop(ExpertBackend):
    """Experts without rows are skipped. On CUDA the row counts are read back, since the host launches each GEMM."""

    def __init__(self, weights: ExpertWeights, activation: str, fusion: str) -> None:
        self.gate_up = weights.gate_up.unbind()
        self.down = weights.down.unbind()
        self.activation = activation
        self.fused = fusion == "gate_up"

    @staticmethod
    def supports(spec: Spec, device: torch.device) -> str | None:
        return rules.refusal("loop", spec)

    def __call__(self, rows: Tensor, counts: Tensor) -> Tensor:
        start = 0
        for expert, count in enumerate(counts.tolist()):
            if count:
                own = rows[start : start + count]
                torch.mm(self._hidden(own, self.gate_up[expert]), self.down[expert].T, out=own)
                start += count
        return rows

    def _hidden(self, rows: Tensor, gate_up: Tensor) -> Tensor:
        if self.fused:
            gate, up = F.linear(rows, gate_up).chunk(2, dim=-1)
        else:
            gate, up = (F.linear(rows, weight) for weight in gate_up.chunk(2))
        return activate(gate, up, self.activation)
