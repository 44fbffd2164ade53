"""Redundant experts against the KV cache."""

from __future__ import annotations

from typing import Any

from bench_worker.spec import Spec
from tests.webapp.experiments import make
from webapp.experiments.redundancy import redundancy_cost


def deployed(**parallel: Any) -> Spec:
    spec = make.experiment().base
    layout = spec.parallel.layout.model_copy(update={"tp": 2, "dp": 2})
    return spec.model_copy(update={"parallel": spec.parallel.model_copy(update={"layout": layout, **parallel})})


def test_redundant_experts_cost_memory_of_the_kv_cache() -> None:
    """olmoe: 16 layers of an expert of 3 · 2048 · 1024 bfloat16 more on each of 4 ranks; KV 2 · 16 heads · 128 · 16
    layers · 2 bytes a token, half of it on each of two TP ranks."""
    cost = redundancy_cost(deployed(redundant_experts=4))
    assert cost is not None
    assert (cost.copies, cost.bytes, cost.requests) == (4, 16 * 3 * 2048 * 1024 * 2, None)
    assert cost.tokens == cost.bytes // (2 * 8 * 128 * 16 * 2)


def test_without_redundant_experts_nothing_is_taken() -> None:
    assert redundancy_cost(deployed(), 10**12) is None
