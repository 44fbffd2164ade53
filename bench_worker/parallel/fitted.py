"""The placement of a run, and the load that it was fitted to. Torch-free.

Shapes: ``L`` executed layers, ``R`` ranks, ``E`` experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bench_worker.models import Model
from bench_worker.parallel.placement import Placement, expert_load, judge, place
from bench_worker.spec import Spec
from bench_worker.workload.recordings import Recording, recorded_layers

__all__ = ["Fitted", "fit_placement"]

#: Policies that place experts by their load.
BY_LOAD = ("eplb", "locality")


@dataclass(frozen=True)
class Fitted:
    """``imbalance``: max / mean rank load, mean over layers, under the load that the placement was fitted to; None
    where it was fitted to ``nothing``. ``held_out``: the same of a placement by the same policy that was fitted to the
    first half of that load, under the second half, which it has not seen; None where the load can't be halved."""

    placement: Placement
    fitted_to: Literal["nothing", "recording", "first pass"]
    imbalance: float | None
    held_out: float | None = None


def fit_placement(
    spec: Spec, model: Model, recording: Recording | None, first_pass: Callable[[], np.ndarray]
) -> Fitted:
    """Place the experts of each executed layer.

    The load is that of the ``recording`` which the run replays, where the routing is left to the model, layer by layer
    as `recorded_layers` chooses them; else ``first_pass()`` counts assignments [2, L, R, E] by the rank of their token,
    in each half of its steps. ``locality`` needs to know those ranks, so it always takes a first pass.
    """
    parallel = spec.parallel
    ranks, policy = parallel.layout.num_ranks, parallel.placement
    sizes = (ranks, policy, parallel.redundant_experts, parallel.layout.nodes, model.num_groups)
    if policy not in BY_LOAD:
        return Fitted(place(np.ones((spec.layers, model.experts)), *sizes), "nothing", None)
    if recording is not None and policy != "locality":
        layers = recorded_layers(len(recording.layers), spec.layers)
        load = recording.shares[layers]
        placement = place(load, *sizes)
        held_out = None
        if recording.ids is not None and len(recording.ids) > 1:
            tokens = np.array_split(recording.ids[:, layers], 2)
            first, second = (expert_load(half, model.experts) for half in tokens)
            held_out = judge(place(first, *sizes), first, second).held_out
        return Fitted(placement, "recording", judge(placement, load, None).fitted, held_out)
    halves = first_pass()
    by_rank, (first, second) = halves.sum(axis=0), halves.sum(axis=2)
    load = by_rank.sum(axis=1)
    placement = place(load, *sizes, source_load=by_rank)
    half = place(first, *sizes, source_load=halves[0])
    held_out = judge(half, first, second).held_out if second.any() else None
    return Fitted(placement, "first pass", judge(placement, load, None).fitted, held_out)
