"""Routing strategies: how tokens and experts choose each other. One file each, one literal registry."""

from __future__ import annotations

from typing import Any

from bench_worker import strategies
from bench_worker.routing.balanced import Balanced
from bench_worker.routing.base import Assignments, Router, SoftSlots
from bench_worker.routing.dynamic import Dynamic
from bench_worker.routing.expert_choice import ExpertChoice
from bench_worker.routing.group_limited import GroupLimited
from bench_worker.routing.hash import Hash
from bench_worker.routing.soft import Soft
from bench_worker.routing.token_choice import TokenChoice

__all__ = ["ROUTERS", "Assignments", "Router", "SoftSlots", "build"]

ROUTERS: dict[str, type[Router]] = {
    "token_choice": TokenChoice,
    "expert_choice": ExpertChoice,
    "dynamic": Dynamic,
    "balanced": Balanced,
    "hash": Hash,
    "soft": Soft,
    "group_limited": GroupLimited,
}


def build(strategy: str, num_experts: int, **params: Any) -> Router:
    """The router of ``strategy`` over ``num_experts`` experts.

    ``params`` are the strategy's own, as `bench_worker.strategies.STRATEGIES` lists them and its class explains them;
    None stands for the strategy's default. Raises `SpecError`, a ``ValueError`` of one sentence, for an unknown
    strategy and for a parameter that is foreign to it or out of bounds.
    """
    found = strategies.checked(strategy, num_experts, params)
    return ROUTERS[strategy](num_experts, **found)
