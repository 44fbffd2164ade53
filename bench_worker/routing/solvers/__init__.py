"""Solvers of balanced routing's transportation problem: scores [T, E] and k to experts [T, k].

Each token gets k distinct experts, each expert floor or ceil of k·T/E tokens, and the sum of the chosen scores is as
large as can be.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from bench_worker.routing.solvers import auction, exact

__all__ = ["SOLVERS"]

SOLVERS: dict[str, Callable[[Tensor, int], Tensor]] = {"auction": auction.solve, "exact": exact.solve}
