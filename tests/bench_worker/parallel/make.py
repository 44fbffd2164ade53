"""Small variants on several ranks, and steps with uneven tokens for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench_worker import models
from bench_worker.network import Network
from bench_worker.parallel.exchange import Exchange, Virtual
from bench_worker.parallel.fitted import Fitted
from bench_worker.parallel.placement import place
from bench_worker.parallel.rank_around import around_step
from bench_worker.parallel.topology import Topology
from bench_worker.parallel.variant import ParallelVariant
from bench_worker.planning import network_key
from bench_worker.spec import Experiment, Library, Spec
from bench_worker.step_input import StepInput
from bench_worker.step_layout import Segment, StepLayout
from bench_worker.weights import Weights

CPU = torch.device("cpu")
#: A byte takes a microsecond, within a node and between nodes.
PLAIN = Topology.model_validate({
    "name": "plain", "description": "made up",
    "paths": {
        domain: {"origin": "assumed", "source": "made up", "alpha_us": 0.0, "gb_per_s": 0.001}
        for domain in ("intra_node", "inter_node")
    },
})  # fmt: skip


def spec(config: Path, *, tp: int = 1, dp: int = 2, nodes: int = 1, **base: Any) -> Spec:
    parallel = {"mode": "virtual", "layout": {"tp": tp, "dp": dp, "nodes": nodes}, **base.pop("parallel", {})}
    document = {
        "model": str(config), "layers": 2, "parallel": parallel,
        "kernels": {"attention": False, "dtype": "float32", **base.pop("kernels", {})}, **base,
    }  # fmt: skip
    return Experiment.model_validate({"base": document}, context=Library(allow_paths=True)).base


def network(of: Spec) -> Network:
    made = Network(models.load(of.model, allow_paths=True), network_key(of), CPU)
    made.make_room(8, 16)
    return made


def fitted(of: Spec, seed: int = 0) -> Fitted:
    """A placement of a skewed load."""
    model, layout = models.load(of.model, allow_paths=True), of.parallel.layout
    load = np.random.default_rng(seed).pareto(1.0, (of.layers, model.experts)) + 0.1
    sizes = layout.num_ranks, of.parallel.placement, of.parallel.redundant_experts, layout.nodes
    return Fitted(place(load, *sizes), "first pass", 1.0)


def virtual(of: Spec) -> ParallelVariant:
    made, layout = network(of), of.parallel.layout
    exchange = Virtual(layout.num_ranks, made.model.hidden, made.dtype, CPU, layout.tp)
    return ParallelVariant(of, made, fitted(of), exchange, PLAIN)


def step(of: Network, tokens_of_requests: dict[int, int], seed: int = 3) -> StepInput:
    """A step with so many tokens of each request."""
    segments, start = [], 0
    for request, length in tokens_of_requests.items():
        segments.append(Segment(request, start, length, 0, request))
        start += length
    place, weights = torch.arange(start), Weights(torch.float32, CPU, seed)
    slot = torch.tensor([s.slot for s in segments for _ in range(s.length)])
    position = torch.tensor([p for s in segments for p in range(s.length)])
    last = torch.tensor([s.start + s.length - 1 for s in segments])
    scores = [weights.noise(start, of.model.experts) for _ in of.layers]
    hidden = weights.noise(start, of.model.hidden).to(of.dtype)
    return StepInput(StepLayout(segments, slot, position, last), place * 7 % of.model.vocab, hidden, scores)


def outputs(variant: ParallelVariant, inputs: StepInput, layer: int = 0) -> list[torch.Tensor]:
    """Outputs [T_r, H] of the ranks that ``variant`` executes."""
    from bench_worker.stages import NoClock

    given = variant.split(inputs)
    exchange: Exchange = variant.exchange
    exchange.meet()
    return variant.forward(layer, given, [NoClock() for _ in given]).outputs


def streams(variant: ParallelVariant, inputs: StepInput) -> list[torch.Tensor]:
    """The residual stream [T_g, H] of each executed rank's group after all layers, with attention."""
    from bench_worker.stages import NoClock

    around = around_step(variant.network, variant.layout, variant.exchange, inputs)
    assert around is not None
    given, clocks = variant.split(inputs), [NoClock() for _ in around.ranks]
    variant.exchange.meet()
    around.begin(clocks)
    for layer in range(len(variant.layers)):
        variant.forward(layer, given, clocks, around)
    return [one.hidden + one.update for one in around.ranks]
