"""From the stages that a clock read to the stages of the whole model. Pure; torch-free.

Leaf stages are dotted (``route.gate``); ``S`` steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench_worker.models import Model
from bench_worker.result import LAYER_STAGES, Scale, Steps

#: Leaf that a `bench_worker.stages.StageClock` reads for the outer mark of the layer; it spans nothing.
LAYER = "layer"
#: Name of a mark after work that belongs to no stage; its time is not read.
UNTIMED = ""
#: Stage of the time in which a rank waits for a slower one, in every MoE layer.
IDLE = "idle"
#: Leaves of an all-to-all among all ranks.
EXCHANGES = ("dispatch", "combine.transfer")


def top(stage: str) -> str:
    """The stage that a leaf belongs to: ``route`` of ``route.gate``."""
    return stage.partition(".")[0]


def in_group(leaf: str) -> bool:
    """Whether it is a transfer among the ranks of a tensor-parallel group, around the MoE layers."""
    return leaf.endswith((".all_reduce", ".all_gather"))


def travels(leaf: str) -> bool:
    """Whether it is a transfer between ranks: the two of every MoE layer, or one `in_group`."""
    return leaf in EXCHANGES or in_group(leaf)


def in_layer(stage: str) -> bool:
    """Whether its time is part of a MoE layer's: waiting for a slower rank is."""
    return top(stage) in LAYER_STAGES or stage == IDLE


def scale(model: Model, executed_layers: int, leaves: Sequence[str]) -> Scale:
    """How often the whole model holds what each leaf measured: MoE layers, layers of a kind of attention, or once. An
    executed layer brings its results to its group once, as a MoE layer of the model does."""
    kinds = model.attention_layers
    counts = {}
    for leaf in leaves:
        if in_layer(leaf) or leaf == "attention.all_gather":
            counts[leaf] = model.moe_layers
        elif top(leaf) == "attention":
            counts[leaf] = next((kinds[part] for part in leaf.split(".") if part in kinds), model.layers)
        else:
            counts[leaf] = model.dense_layers if leaf.startswith("other.dense_ffn") else 1
    return Scale(executed_layers=executed_layers, counts=counts)


def step_us(leaves: dict[str, np.ndarray], scaling: Scale) -> np.ndarray:
    """Whole-model step times [S] in µs: Σ count · time."""
    return np.sum([times * scaling.counts[leaf] for leaf, times in leaves.items()], axis=0)


def model_step_us(times_us: dict[str, float], model: Model, executed_layers: int) -> float:
    """The whole-model time of one step with ``times_us``, as `step_us` makes it of all."""
    counts = scale(model, executed_layers, [leaf for leaf in times_us if leaf != LAYER]).counts
    return sum(
        count * times_us[leaf] / (1 if top(leaf) == "other" else executed_layers) for leaf, count in counts.items()
    )


def with_stages(leaves: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``leaves`` and the stages that they sum to, each stage before its parts."""
    stages: dict[str, np.ndarray] = {}
    for leaf in leaves:
        stage = top(leaf)
        if stage not in stages:
            parts = {name: times for name, times in leaves.items() if top(name) == stage}
            stages[stage] = np.sum(list(parts.values()), axis=0)
            stages.update({name: times for name, times in parts.items() if name != stage})
    return stages


def model_leaves(steps: Steps, scaling: Scale) -> dict[str, np.ndarray]:
    """Whole-model time [S] in µs of every leaf stage, and ``idle`` where a rank waited: the mean over the ranks."""

    nothing, ranks = np.zeros(len(steps.index)), len(steps.ranks)
    leaves: dict[str, np.ndarray] = {}
    for leaf, count in scaling.counts.items():
        times = [np.asarray(rank.stages_us.get(leaf, nothing), float) for rank in steps.ranks]
        leaves[leaf] = np.sum(times, axis=0) * count / ranks
    waited = np.sum([np.asarray(rank.idle_us, float) for rank in steps.ranks], axis=0)
    if waited.any():
        layers = next(count for leaf, count in scaling.counts.items() if top(leaf) in LAYER_STAGES)
        leaves[IDLE] = waited * layers / ranks
    return leaves
