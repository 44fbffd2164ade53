"""Do the stages sum to the layer, and what do the clock's marks cost? Quoted in docs/measurement.md."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from bench_worker import environment, models
from bench_worker.network import Network
from bench_worker.planning import network_key
from bench_worker.result import LAYER_STAGES
from bench_worker.spec import Experiment
from bench_worker.stages import LAYER, StageClock, WholeClock
from bench_worker.step_input import StepInput, StepSource
from bench_worker.step_layout import one_request
from bench_worker.variant import Variant

#: Tokens of a step -> repeats, so that each row takes about as long.
REPEATS = {1: 300, 8: 120, 64: 60, 512: 30, 2048: 16}
MODELS = ("olmoe-1b-7b", "qwen3-30b-a3b")


def section() -> None:
    for name in MODELS:
        clock_table(name)


def clock_table(name: str) -> None:
    """A row for each size of a step: medians with the number of repeats they stand on."""
    device = environment.device()
    spec = Experiment.model_validate({"base": {"model": name, "kernels": {"attention": False}}}).base
    variant = Variant(spec, Network(models.load(name), network_key(spec), device))
    print(f"{name}, one MoE layer, {spec.kernels.dtype}, DeepSpeed grouped GEMM, {spec.load.profile} load")
    print(f"{'tokens':>8}{'layer ms':>12}{'Σ stages / whole':>20}{'marks / layer':>16}{'repeats':>10}")
    source = StepSource(seed=0)
    mark_us = _mark_cost_us(device)
    for tokens, repeats in REPEATS.items():
        layout = one_request(tokens, device)
        inputs = [
            source.make(variant.network, spec.load, step, layout) for step in range(7)
        ]  # odd: both orders meet all
        for step in inputs[:3]:
            variant.step(step, StageClock(device))
        stages, whole = StageClock(device), WholeClock(device)
        pairs = _interleaved(repeats, inputs, partial(_stage_sum, variant, stages), partial(_whole, variant, whole))
        layer_us = statistics.median(whole_us for _, whole_us, _ in pairs)
        print(f"{tokens:>8}{layer_us / 1e3:>12.3f}{_ratio(pairs):>20.3f}{7 * mark_us / layer_us:>16.4%}{repeats:>10}")
    print()


def _interleaved(
    repeats: int, inputs: list[StepInput], first: Callable[[StepInput], float], second: Callable[[StepInput], float]
) -> list[tuple[float, float, bool]]:
    """``repeats`` pairs of both, each pair on the same inputs, with their order swapped from pair to pair."""
    pairs = []
    for turn in range(repeats):
        swapped, given = turn % 2 == 1, inputs[turn % len(inputs)]
        if swapped:
            b, a = second(given), first(given)
        else:
            a, b = first(given), second(given)
        pairs.append((a, b, swapped))
    return pairs


def _ratio(pairs: list[tuple[float, float, bool]]) -> float:
    """first / second: the geometric mean over both orders of the median ratio, since whoever runs second finds warm
    caches."""
    by_order = [statistics.median(a / b for a, b, swapped in pairs if swapped == order) for order in (False, True)]
    return float((by_order[0] * by_order[1]) ** 0.5)


def _stage_sum(variant: Variant, clock: StageClock, inputs: StepInput) -> float:
    variant.step(inputs, clock)
    return sum(us for stage, us in clock.read().items() if stage.partition(".")[0] in LAYER_STAGES)


def _whole(variant: Variant, clock: StageClock, inputs: StepInput) -> float:
    variant.step(inputs, clock)
    return clock.read()[LAYER]


def _mark_cost_us(device: torch.device) -> float:
    """Host time of one mark."""
    clock, marks = StageClock(device), 10_000
    clock.begin()
    start = time.perf_counter_ns()
    for _ in range(marks):
        clock.inner("stage")
    return (time.perf_counter_ns() - start) / 1e3 / marks
