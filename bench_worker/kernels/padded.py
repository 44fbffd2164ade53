"""All experts as one batched GEMM a projection, over rows padded to equally many an expert.

The GShard way (2006.16668): simple shapes, paid for with rows that hold no token and with every expert's weights read.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench_worker.kernels import rules
from bench_worker.kernels.base import ExpertBackend, ExpertWeights, activate
from bench_worker.spec import Spec


class Padded(ExpertBackend):
    """``capacity`` gives the most rows that an expert may have in a step of so many tokens, where a capacity limits it:
    the padded size is then known without asking the device. Else rows are padded to the fullest expert, which on CUDA
    has to be read back."""

    def __init__(
        self,
        weights: ExpertWeights,
        activation: str,
        fusion: str,
        capacity: Callable[[int], int] | None = None,
    ) -> None:
        self.weights = weights
        self.activation = activation
        self.fused = fusion == "gate_up"
        self.capacity = capacity

    @staticmethod
    def supports(spec: Spec, device: torch.device) -> str | None:
        return rules.refusal("padded", spec)

    def room(self, counts: Tensor, num_tokens: int) -> int:
        return int(counts.max()) if self.capacity is None else self.capacity(num_tokens)

    def __call__(self, rows: Tensor, counts: Tensor) -> Tensor:
        if not rows.numel():
            return rows
        by_expert = rows.view(counts.numel(), -1, rows.shape[-1])  # [E, room, H]
        hidden = self._hidden(by_expert)
        torch.bmm(hidden, self.weights.down.transpose(1, 2), out=by_expert)
        return rows

    def _hidden(self, rows: Tensor) -> Tensor:
        if self.fused:
            gate, up = torch.bmm(rows, self.weights.gate_up.transpose(1, 2)).chunk(2, dim=-1)
        else:
            gate, up = (torch.bmm(rows, weight.transpose(1, 2)) for weight in (self.weights.gate, self.weights.up))
        return activate(gate, up, self.activation)
