"""Experts' weights in a narrower number format: rounded once, and read by kernels that know it.

Shapes: ``E`` experts, ``O`` outputs and ``K`` inputs of a matrix, ``G`` groups of `GROUP` inputs, ``N`` rows.

``int8``: round(w / s) with one scale s = max |w| / 127 an output. ``int4``: round(w / s) from −8 to 7, with one scale
s = max |w| / 7 for each group of an output (symmetric, as GPTQ's and AWQ's kernels store it: torch keeps a zero point
beside the scale). Scales are in the experiment's dtype, as torch's kernels take them. Rounding is to the nearest: no
calibration data stands behind it, as there is none for random weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from bench_worker.capacity import SCALED_TOGETHER as GROUP
from bench_worker.kernels.base import ExpertSource

__all__ = ["GROUP", "Int4", "Int8", "Matrices", "QuantizedWeights", "Rounded", "quantize"]

#: Half of the steps between the values of a format: int8 is symmetric, int4 has one value more below zero.
INT8_MOST, INT4_MOST = 127, 7
#: Where int4's values begin once they are stored without a sign, which is also what its zero point of 0.0 stands for.
INT4_ZERO = 8
#: A scale of zeros, so that nothing is divided by zero.
LEAST_SCALE = 1e-12


@dataclass(frozen=True)
class Matrices(ABC):
    """One matrix [O, K] of each expert: its ``values`` and their ``scales``, as the format lays them out."""

    values: Tensor
    scales: Tensor

    @classmethod
    @abstractmethod
    def empty(cls, experts: int, outputs: int, inputs: int, dtype: torch.dtype) -> Self: ...

    @staticmethod
    @abstractmethod
    def rounded(matrix: Tensor) -> tuple[Tensor, Tensor]:
        """The values of ``matrix`` [O, K] in the format, still as float32, and their scales in the matrix's dtype, of a
        shape that is multiplied with them."""

    @abstractmethod
    def put(self, expert: int, matrix: Tensor) -> None:
        """Round ``matrix`` [O, K] into the place of ``expert``."""

    @abstractmethod
    def product(self, rows: Tensor, expert: int) -> Tensor:
        """``rows`` [N, K] times the matrix of ``expert``, transposed: [N, O]."""

    def take(self, chosen: slice | Tensor) -> Self:
        """Those of some experts: views where they lie together, copies else."""
        return type(self)(self.values[chosen], self.scales[chosen])


class Int8(Matrices):
    """``values`` int8 [E, O, K] and ``scales`` [E, O]."""

    @classmethod
    def empty(cls, experts: int, outputs: int, inputs: int, dtype: torch.dtype) -> Self:
        return cls(torch.empty(experts, outputs, inputs, dtype=torch.int8), torch.empty(experts, outputs, dtype=dtype))

    @staticmethod
    def rounded(matrix: Tensor) -> tuple[Tensor, Tensor]:
        return _symmetric(matrix, INT8_MOST, -INT8_MOST)

    def put(self, expert: int, matrix: Tensor) -> None:
        values, scales = self.rounded(matrix)
        self.values[expert], self.scales[expert] = values, scales.flatten()

    def product(self, rows: Tensor, expert: int) -> Tensor:
        return torch._weight_int8pack_mm(rows, self.values[expert], self.scales[expert])


class Int4(Matrices):
    """``values`` uint8 [E, O, K/2], two in a byte and in the order that torch's kernel reads them, and ``scales``
    [E, G, O, 2], each with its zero point."""

    @classmethod
    def empty(cls, experts: int, outputs: int, inputs: int, dtype: torch.dtype) -> Self:
        values = torch.empty(experts, outputs, inputs // 2, dtype=torch.uint8)
        return cls(values, torch.zeros(experts, inputs // GROUP, outputs, 2, dtype=dtype))

    @staticmethod
    def rounded(matrix: Tensor) -> tuple[Tensor, Tensor]:
        return _symmetric(matrix.unflatten(1, (-1, GROUP)), INT4_MOST, -INT4_ZERO)

    def put(self, expert: int, matrix: Tensor) -> None:
        values, scales = self.rounded(matrix)
        unsigned = (values.flatten(1) + INT4_ZERO).to(torch.int32)
        self.values[expert] = torch.ops.aten._convert_weight_to_int4pack_for_cpu(unsigned, 1)
        self.scales[expert, :, :, 0] = scales.squeeze(-1).t()

    def product(self, rows: Tensor, expert: int) -> Tensor:
        return torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.values[expert], GROUP, self.scales[expert])


#: By value of ``kernels.quantization``.
FORMATS: dict[str, type[Matrices]] = {"int8": Int8, "int4": Int4}


@dataclass(frozen=True)
class QuantizedWeights:
    """As `ExpertWeights`, in a narrower format: ``gate_up`` [E, 2I, H] and ``down`` [E, H, I]."""

    gate_up: Matrices
    down: Matrices

    def take(self, chosen: slice | Tensor) -> QuantizedWeights:
        """As of `ExpertWeights`."""
        return QuantizedWeights(self.gate_up.take(chosen), self.down.take(chosen))


def quantize(
    source: ExpertSource,
    experts: Sequence[int],
    shape: tuple[int, int],
    dtype: torch.dtype,
    quantization: str,
    sign: Callable[[], None] = lambda: None,
) -> QuantizedWeights:
    """The weights of ``experts`` of ``source``, in that order; ``shape`` (H, I). ``sign`` is called after each: one is
    held unrounded at a time."""
    made, (hidden, inner) = FORMATS[quantization], shape
    gate_up = made.empty(len(experts), 2 * inner, hidden, dtype)
    down = made.empty(len(experts), hidden, inner, dtype)
    for place, expert in enumerate(experts):
        gate, up, own_down = source.of(expert)
        gate_up.put(place, torch.cat((gate, up)))
        down.put(place, own_down)
        sign()
    return QuantizedWeights(gate_up, down)


class Rounded:
    """The experts of ``source`` as their format rounds them, in float32: what kernels are checked against. It knows
    nothing of how they are stored."""

    def __init__(self, source: ExpertSource, quantization: str) -> None:
        self._source, self._format = source, FORMATS[quantization]

    def of(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        gate, up, down = (self._rounded(matrix) for matrix in self._source.of(expert))
        return gate, up, down

    def _rounded(self, matrix: Tensor) -> Tensor:
        values, scales = self._format.rounded(matrix)
        return (values * scales.float()).view(matrix.shape)


def _symmetric(matrix: Tensor, most: int, least: int) -> tuple[Tensor, Tensor]:
    """Values from ``least`` to ``most`` [..., K], as float32, with a scale for each last row [..., 1]."""
    wide = matrix.float()
    scales = (wide.abs().amax(dim=-1, keepdim=True) / most).clamp(min=LEAST_SCALE).to(matrix.dtype)
    return (wide / scales.float()).round().clamp(least, most), scales
