"""Makes the variant of a spec that has several ranks: places its experts, then executes or counts.

Shapes: ``L`` executed layers, ``R`` ranks, ``E`` experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from bench_worker.network import Network
from bench_worker.parallel.counting import CountingVariant
from bench_worker.parallel.exchange import Distributed, Exchange, Virtual
from bench_worker.parallel.fitted import fit_placement
from bench_worker.parallel.layout import Layout
from bench_worker.parallel.rank_layer import select
from bench_worker.parallel.topology import load_topology
from bench_worker.parallel.variant import ParallelVariant, rows_of_ranks
from bench_worker.planning import Condition
from bench_worker.routing import Assignments
from bench_worker.spec import Spec
from bench_worker.step_input import StepSource
from bench_worker.step_layout import Slots
from bench_worker.variant_base import VariantBase
from bench_worker.workload.recordings import Recording

__all__ = ["build", "first_pass"]

#: Steps of the schedule, from its beginning, that a placement is fitted to.
FIRST_PASS_STEPS = 64


def build(
    spec: Spec,
    network: Network,
    conditions: Sequence[Condition],
    recordings: Mapping[str, Recording],
    sign: Callable[[str], None] = lambda _: None,
) -> ParallelVariant | CountingVariant:
    """The variant of ``spec``, with a placement that is fitted to the recording or to the first of ``conditions``.
    ``sign`` hears of every step and stage that has ended."""
    recording = recordings.get(spec.load.recording or "")
    fitted = fit_placement(
        spec, network.model, recording, lambda: first_pass(VariantBase(spec, network), conditions[0], recordings, sign)
    )
    tp = spec.parallel.layout.tp if network.has_attention else 1
    if spec.parallel.mode == "distributed":
        real = Distributed(network.model.hidden, network.dtype, network.device, tp=tp)
        return ParallelVariant(spec, network, fitted, real, None, sign)
    topology = load_topology(spec.parallel.topology)
    if spec.parallel.count_only:
        return CountingVariant(spec, network, fitted, topology)
    virtual: Exchange = Virtual(spec.parallel.layout.num_ranks, network.model.hidden, network.dtype, network.device, tp)
    return ParallelVariant(spec, network, fitted, virtual, topology)


def first_pass(
    variant: VariantBase,
    condition: Condition,
    recordings: Mapping[str, Recording],
    sign: Callable[[str], None] = lambda _: None,
) -> np.ndarray:
    """Assignments float64 [2, L, R, E] by the rank of their token, in each half of the first steps of ``condition``:
    what the measured steps will route, since both draw the same scores."""
    network, spec = variant.network, variant.spec
    layout = Layout(**spec.parallel.layout.model_dump())
    halves = np.zeros((2, len(network.layers), layout.num_ranks, network.model.experts))
    batches = condition.batches[:FIRST_PASS_STEPS]
    source, slots = StepSource(condition.seed, recordings=recordings), Slots(condition.concurrency)
    for index, batch in enumerate(batches):
        counts = halves[2 * index // len(batches)]
        step = slots.layout(batch, network.device)
        inputs = source.make(network, spec.load, index, step, layers_stay=True)
        for rank, own in enumerate(rows_of_ranks(layout, step)):
            rows = torch.from_numpy(own).to(network.device)
            token_ids = inputs.token_ids[rows]
            for layer, scores in enumerate(inputs.scores):
                routed = select(variant.router, scores[rows], token_ids)
                if isinstance(routed, Assignments):
                    counts[layer, rank] += torch.bincount(routed.expert, minlength=counts.shape[2]).cpu().numpy()
                else:  # every expert computes as many slots
                    counts[layer, rank] += routed.dispatch.shape[1] // counts.shape[2]
        sign("a step of the first pass")
    return halves
