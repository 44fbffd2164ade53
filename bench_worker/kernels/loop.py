"""One GEMM an expert and projection, in a Python loop: the plain way, and what every grouped kernel must beat."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bench_worker.kernels import rules
from bench_worker.kernels.base import ExpertBackend, ExpertWeights, activate
from bench_worker.kernels.quantized import QuantizedWeights
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
                self._run(own, expert)
                start += count
        return rows

    def _run(self, rows: Tensor, expert: int) -> None:
        """Write what ``expert`` makes of ``rows`` over them."""
        if self.fused:
            gate, up = F.linear(rows, self.gate_up[expert]).chunk(2, dim=-1)
        else:
            gate, up = (F.linear(rows, weight) for weight in self.gate_up[expert].chunk(2))
        torch.mm(activate(gate, up, self.activation), self.down[expert].T, out=rows)


class QuantizedLoop(Loop):
    """The same by torch's products of rows with quantized weights: values are widened on their way through the
    kernel, so rows keep their format."""

    def __init__(self, weights: QuantizedWeights, activation: str) -> None:
        self.weights, self.activation = weights, activation

    def _run(self, rows: Tensor, expert: int) -> None:
        gate, up = self.weights.gate_up.product(rows, expert).chunk(2, dim=-1)
        rows.copy_(self.weights.down.product(activate(gate, up, self.activation), expert))
