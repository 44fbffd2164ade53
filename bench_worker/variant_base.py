"""What every variant has, on one rank or on many: its network and its router."""

from __future__ import annotations

from bench_worker import routing, strategies
from bench_worker.network import Network
from bench_worker.result import Choice
from bench_worker.routing import Router
from bench_worker.spec import Spec


class VariantBase:
    """``own_router``: the router that the model was trained with; None where the variant's chooses the same experts.
    ``choices``: what ``auto`` chose at each size of step, and in ``refused`` why not others; empty elsewhere."""

    def __init__(self, spec: Spec, network: Network) -> None:
        self.spec, self.network = spec, network
        self.params = strategies.parameters(spec.routing, network.model, spec.workload.seed)
        self.router = routing.build(spec.routing.strategy, network.model.experts, **self.params)
        self.own_router = self._own_router()
        self.choices: list[Choice] = []
        self.refused: dict[str, str] = {}

    def _own_router(self) -> Router | None:
        model = self.network.model
        own = strategies.own_routing(model)
        params = strategies.parameters(own, model, self.spec.workload.seed)
        if own.strategy == self.spec.routing.strategy and params == self.params:
            return None
        return routing.build(own.strategy, model.experts, **params)
