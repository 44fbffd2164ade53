"""Finds the fastest expert backend for ``auto``, by measuring the candidates at the sizes of step that will occur."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from math import log

from bench_worker.interleave import interleaved
from bench_worker.result import Choice
from bench_worker.stages import LAYER, WholeClock
from bench_worker.variant import Variant
from bench_worker.workload.recordings import Recording

#: Tokens of a step at which the candidates are measured.
SIZES = (1, 8, 64, 512, 2048, 8192, 32_768, 131_072)
ROUNDS, SECONDS = 9, 2.0


def tune(variant: Variant, tokens: Iterable[int], recordings: Mapping[str, Recording] | None = None) -> None:
    """Let ``variant``, whose experts are ``auto``, choose a backend for steps of ``tokens``: the one with the least
    median time of a whole MoE layer at the nearest of `SIZES`.

    ``recordings``: the expert loads that its spec may name.
    """
    clock = WholeClock(variant.network.device)
    layers = variant.alternatives()
    for size in sorted({_nearest(count) for count in tokens}):
        inputs = [variant.sample(size, seed, recordings) for seed in range(3)]
        readings = interleaved(layers, inputs, clock, ROUNDS, SECONDS)
        layer_us = {name: statistics.median(r.times_us[LAYER] for r in readings if r.name == name) for name in layers}
        fastest = min(layer_us, key=lambda name: layer_us[name])
        variant.choices.append(Choice(tokens=size, backend=fastest, fusion=variant.fusions[fastest], layer_us=layer_us))


def choices_note(choices: Sequence[Choice]) -> str:
    """Which backends ``auto`` chose and why, in one sentence."""
    parts = []
    for choice in choices:
        others = {name: us for name, us in choice.layer_us.items() if name != choice.backend}
        took = f"{choice.backend} ({choice.fusion}) at {choice.tokens:,} tokens: {_ms(choice.layer_us[choice.backend])}"
        if others:
            second = min(others, key=lambda name: others[name])
            took += f" a layer, {second} {_ms(others[second])}"
        parts.append(took)
    return f"auto measured and chose {'; '.join(parts)}."


def _ms(time_us: float) -> str:
    return f"{time_us / 1e3:.3g} ms"


def _nearest(tokens: int) -> int:
    return min(SIZES, key=lambda size: abs(log(size / tokens)))
