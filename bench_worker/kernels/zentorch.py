"""AMD's ZenDNN group GEMM (package ``zentorch``): gate, up, activation and down of all experts in one call.

It packs each weight at its first use and finds the packed copy again **by the weight's address**. Another weight at
the same address silently gives wrong results, and clearing its caches does not help. So every weight that is given to
it stays alive, unchanged, until the process ends; the scales of quantized ones, too.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench_worker.kernels import rules
from bench_worker.kernels.base import ExpertBackend, ExpertWeights, activate
from bench_worker.kernels.quantized import Int8, Matrices, QuantizedWeights
from bench_worker.spec import Spec

#: Row counts of an expert on both sides of the border between zentorch's two kernels (it lies above 32 rows).
WARM_ROWS = (1, 40)

#: An expert's rows are split above so many, and above an equal share of all rows in this many parts a thread.
LEAST_PART, PARTS_PER_THREAD = 64, 8

#: Every weight that zentorch has seen, by address, so that no other tensor ever gets that address.
_KEPT: dict[int, Tensor] = {}


def missing(device: torch.device) -> str | None:
    """Why zentorch can't run on ``device``, or None where it can."""
    if device.type != "cpu":
        return f"it runs on x86-64 CPUs only, and this device is {device.type}"
    if importlib.util.find_spec("zentorch") is None:
        return "it is not installed here; its package exists for x86-64 Linux only"
    if (capability := torch.backends.cpu.get_cpu_capability()) != "AVX512":
        return f"it needs a CPU with AVX-512, and this one offers {capability}"
    return None


def linear(rows: Tensor, weight: Tensor) -> Tensor:
    """``rows`` [N, K] times ``weight`` [M, K] transposed, by zentorch. Keeps the weight."""
    _keep(weight)
    return _operators().zentorch_linear_unary(rows, weight)


class ZenTorch(ExpertBackend):
    """``fusion`` ``whole`` runs everything in one call, ``gate_up`` two group GEMMs and ``none`` three, with the
    activation between them in torch. Int8 weights are multiplied with rows that each call rounds to int8 as well, each
    with a scale of its own: all arithmetic is in int8."""

    def __init__(self, weights: ExpertWeights | QuantizedWeights, activation: str, fusion: str) -> None:
        self._group_gemm = _operators().zentorch_group_matmul.out
        self.gate_up, self.down = _Matrices.of(weights.gate_up), _Matrices.of(weights.down)
        self.gate, self.up = self.gate_up.halves()
        self.num_experts, self.hidden = len(self.down.values), len(self.down.values[0])
        if isinstance(weights, QuantizedWeights):
            self.rows_format, self.dtype = "int8", self.down.scales[0].dtype
        else:
            self.dtype = weights.down.dtype
        self.activation = activation
        self.fusion = fusion

    @staticmethod
    def supports(spec: Spec, device: torch.device) -> str | None:
        if reason := missing(device):
            return f"kernels.experts: 'zentorch' can't run: {reason}"
        return rules.refusal("zentorch", spec)

    def warm(self) -> None:
        for rows_each in WARM_ROWS:
            counts = torch.full((self.num_experts,), rows_each)
            self(torch.zeros(rows_each * self.num_experts, self.hidden, dtype=self.dtype), counts)

    def __call__(self, rows: Tensor, counts: Tensor) -> Tensor:
        if not rows.numel():
            return rows
        experts, sizes = _parts(counts, rows.shape[0])
        parts = rows.split(sizes)
        if self.fusion == "whole":
            # without outputs it writes the last product over the rows
            self._gemm([], parts, self.gate_up, self.down, experts, "silu")
            return rows
        if self.fusion == "gate_up":
            gate, up = self._product(rows, sizes, self.gate_up, experts).chunk(2, dim=-1)
        else:
            gate, up = (self._product(rows, sizes, weight, experts) for weight in (self.gate, self.up))
        hidden = activate(gate, up, self.activation)
        self._gemm(parts, hidden.split(sizes), self.down, None, experts, "none")
        return rows

    def _product(self, rows: Tensor, sizes: list[int], weights: _Matrices, experts: list[int]) -> Tensor:
        out = rows.new_empty(rows.shape[0], weights.values[0].shape[0])
        self._gemm(out.split(sizes), rows.split(sizes), weights, None, experts, "none")
        return out

    def _gemm(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        weights: _Matrices,
        down: _Matrices | None,
        experts: list[int],
        activation: str,
    ) -> None:
        no_bias = [None] * len(inputs)
        self._group_gemm(
            outputs,
            inputs,
            _of(weights.values, experts),
            [] if down is None else _of(down.values, experts),
            None,
            None,
            None,
            activation,
            no_bias,
            [] if down is None else no_bias,
            _of(weights.scales, experts),
            [] if down is None else _of(down.scales, experts),
            [],
        )


class _Matrices(NamedTuple):
    """One tensor an expert, made once, since the kernel takes lists. ``scales`` [O] where they are quantized."""

    values: tuple[Tensor, ...]
    scales: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, matrices: Tensor | Matrices) -> _Matrices:
        assert isinstance(matrices, Tensor | Int8), "refused by the rules"
        stored = (matrices,) if isinstance(matrices, Tensor) else (matrices.values, matrices.scales)
        for tensor in stored:
            _keep(tensor)
        return cls(*(tensor.unbind() for tensor in stored))

    def halves(self) -> tuple[_Matrices, _Matrices]:
        """The upper and the lower half of each."""
        first, second = (tuple(tuple(one.chunk(2)[half] for one in tensors) for tensors in self) for half in (0, 1))
        return _Matrices(*first), _Matrices(*second)


def _parts(counts: Tensor, total: int) -> tuple[list[int], list[int]]:
    """The experts with rows and how many, in order. An expert with a large part of all rows stands there several times,
    so that its one thread does not keep the others waiting."""
    active = counts.nonzero().flatten()
    own = counts[active]
    most = max(LEAST_PART, -(-total // (PARTS_PER_THREAD * torch.get_num_threads())))
    if total > most:
        pieces = (own + most - 1) // most
        active, own = active.repeat_interleave(pieces), own.repeat_interleave(pieces)
        begins = pieces.cumsum(0) - pieces
        piece = torch.arange(active.numel()) - begins.repeat_interleave(pieces)
        pieces = pieces.repeat_interleave(pieces)
        own = own * (piece + 1) // pieces - own * piece // pieces
    return active.tolist(), own.tolist()


def _of(tensors: tuple[Tensor, ...], experts: list[int]) -> list[Tensor]:
    return [tensors[expert] for expert in experts] if tensors else []


def _keep(weight: Tensor) -> None:
    _KEPT[weight.data_ptr()] = weight


@cache
def _operators() -> Any:
    """Its operators, imported at first use: the package changes torch's compiler, and warns on standard error."""
    os.environ.setdefault("ZENDNNL_API_LOG_LEVEL", "0")
    # One thread an expert. Its own choice for large batches splits every expert over all threads, which costs 3 to 6%
    # here, and far more where another process takes a processor, since it waits for all threads after each expert.
    os.environ.setdefault("ZENDNNL_GRP_MATMUL_AUTO_PROMPT_ALGO", "5")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, which it uses
        import zentorch  # noqa: F401

    return torch.ops.zentorch
