"""Weights of a layer as the kernels read them, and what an expert backend is.

Shapes: ``H`` hidden, ``I`` expert intermediate, ``E`` experts, ``N`` packed rows, grouped by expert.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from bench_worker.spec import Spec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class ExpertSource(Protocol):
    """Has the weights of every expert of a layer, or makes them."""

    def of(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        """Gate [I, H], up [I, H] and down [H, I] of one expert."""
        ...


@dataclass(frozen=True)
class ExpertWeights:
    """``gate_up`` [E, 2I, H] holds the gate rows, then the up rows, of each expert; ``down`` [E, H, I]."""

    gate_up: Tensor
    down: Tensor

    def of(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.gate[expert], self.up[expert], self.down[expert]

    def take(self, chosen: slice | Tensor) -> ExpertWeights:
        """Of some of the experts: views where they lie together, copies else."""
        return ExpertWeights(self.gate_up[chosen], self.down[chosen])

    @property
    def gate(self) -> Tensor:
        return self.gate_up[:, : self.gate_up.shape[1] // 2]

    @property
    def up(self) -> Tensor:
        return self.gate_up[:, self.gate_up.shape[1] // 2 :]


class Experts(Protocol):
    """The experts of a layer: one backend, or several to choose from by the size of the step."""

    def at(self, num_tokens: int) -> ExpertBackend:
        """The backend that runs a step of ``num_tokens``."""
        ...

    def each(self) -> list[ExpertBackend]:
        """Every backend that `at` may return."""
        ...


class ExpertBackend(ABC):
    """Runs all experts over rows that are grouped by expert. Its weights must outlive it and never change."""

    #: It never waits for the device, so a CUDA graph can capture it.
    graphable = False
    #: The narrower format that it rounds each row to before a product; None where it takes rows as they are.
    rows_format: str | None = None

    @staticmethod
    @abstractmethod
    def supports(spec: Spec, device: torch.device) -> str | None:
        """None where the backend can run ``spec`` on ``device``, else one sentence that says why not."""

    @abstractmethod
    def __call__(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Expert outputs of ``rows`` [N, H], row by row; ``counts`` int64 [E] rows belong to each expert, in order.

        May write them over ``rows``. Where `room` sets rows aside, N is E · room and the rows beyond an expert's count
        hold anything.
        """

    def room(self, counts: Tensor, num_tokens: int) -> int | None:
        """Rows that are set aside for each expert in a step of ``num_tokens``; None: experts lie back to back."""
        return None

    def at(self, num_tokens: int) -> ExpertBackend:
        return self

    def each(self) -> list[ExpertBackend]:
        return [self]

    def warm(self) -> None:  # noqa: B027  most have nothing to do
        """Do once what the first calls would do besides computing: pack weights, make kernels."""


def lacking(dtype: str, device: torch.device) -> str | None:
    """One sentence where ``device`` can't compute in ``dtype``; None where it can."""
    if dtype == "bfloat16" and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        name = torch.cuda.get_device_name(device)
        return f"kernels.dtype: 'bfloat16' needs a GPU of compute capability 8.0 or above; {name} is older"
    return None


def activate(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """The input [N, I] of the down projection from ``gate`` and ``up`` [N, I], as `reference.activate` defines it."""
    if activation == "swiglu":
        return F.silu(gate).mul_(up)
    gate = gate.clamp(max=7.0)
    return torch.sigmoid(gate * 1.702).mul_(gate).mul_(up.clamp(-7.0, 7.0).add_(1.0))
