"""DeepSpeed's ``GroupedExperts``: all experts as grouped GEMMs over rows sorted by expert.

It is given true row counts. DeepSpeed's own packing pads every expert, empty ones too, to a multiple of 8 rows with a
Python loop on the CPU, which at one token takes longer than the experts themselves.
"""

from __future__ import annotations

import logging
import os

import torch
from torch import Tensor, nn

os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")  # no probing, no warning
logging.getLogger("DeepSpeed").setLevel(logging.ERROR)

from deepspeed.moe.ep_experts import GroupedExperts, apply_packed_expert_activation  # noqa: E402

from bench_worker.kernels import rules  # noqa: E402
from bench_worker.kernels.base import ExpertBackend, ExpertWeights  # noqa: E402
from bench_worker.spec import Spec  # noqa: E402


class DeepSpeedGrouped(ExpertBackend):
    """``fusion`` ``none`` calls ``GroupedExperts`` as shipped: one grouped GEMM each for gate, up and down.

    ``gate_up`` runs the same kernels with gate and up in one grouped GEMM over weights that lie side by side, as
    ``GroupedExperts(gate_up_impl="fused")`` does, without its copy of all weights on every call.
    """

    def __init__(self, weights: ExpertWeights, activation: str, fusion: str) -> None:
        num_experts, hidden, intermediate = weights.down.shape
        with torch.device("meta"):
            module = GroupedExperts(hidden, intermediate, num_experts, activation=activation)
        module.w1 = nn.Parameter(weights.gate, requires_grad=False)
        module.w2 = nn.Parameter(weights.down, requires_grad=False)
        module.w3 = nn.Parameter(weights.up, requires_grad=False)
        self.module = module
        self.gate_up = weights.gate_up.transpose(-2, -1)
        self.down = weights.down.transpose(-2, -1)
        self.run = self._gate_up if fusion == "gate_up" else module.forward
        self.graphable = fusion == "gate_up"

    @staticmethod
    def supports(spec: Spec, device: torch.device) -> str | None:
        if reason := rules.refusal("deepspeed", spec):
            return reason
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            name = torch.cuda.get_device_name(device)
            return f"kernels.experts: 'deepspeed' needs a GPU of compute capability 8.0 or above; {name} is older"
        return None

    def __call__(self, rows: Tensor, counts: Tensor) -> Tensor:
        return self.run(rows, counts)

    def _gate_up(self, rows: Tensor, counts: Tensor) -> Tensor:
        grouped = _triton_grouped_mm if self.module.use_triton_grouped_mm else _torch_grouped_mm
        offsets = counts.cumsum(0, dtype=torch.int32)
        hidden = apply_packed_expert_activation(
            grouped(rows, self.gate_up, offsets),
            self.module.activation,
            self.module.activation_alpha,
            self.module.activation_limit,
        )
        return grouped(hidden, self.down, offsets)


def _torch_grouped_mm(rows: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    return torch._grouped_mm(rows, weights, offs=offsets)


def _triton_grouped_mm(rows: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    from deepspeed.ops.triton_ops.group_gemm_triton import group_gemm_triton

    return group_gemm_triton(rows, weights.transpose(-2, -1), offsets, trans_b=True)
