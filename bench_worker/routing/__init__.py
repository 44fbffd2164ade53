"""Routing strategies: how tokens and experts choose each other. One file each, one literal registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench_worker.routing.base import Assignments, Router
from bench_worker.routing.token_choice import TokenChoice

__all__ = ["STRATEGIES", "Assignments", "Router", "build"]

STRATEGIES: dict[str, Callable[..., Router]] = {"token_choice": TokenChoice}


def build(strategy: str, num_experts: int, **params: Any) -> Router:
    """The router of ``strategy`` over ``num_experts`` experts.

    ``params`` are the strategy's own (see its class). Raises ``ValueError`` for an unknown strategy or a parameter that
    it can't take.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"routing strategy {strategy!r} is not one of {', '.join(STRATEGIES)}")
    return STRATEGIES[strategy](num_experts, **params)
