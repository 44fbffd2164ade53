"""How often real comparisons are right: of equal variants, and of one that a known time was added to. Quoted in
docs/comparison.md."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import torch

from bench_worker import environment, models
from bench_worker.comparison import compare_times
from bench_worker.findings import Comparison
from bench_worker.network import Network
from bench_worker.planning import network_key
from bench_worker.rotation import order, turns
from bench_worker.scaling import LAYER, with_stages
from bench_worker.spec import Experiment
from bench_worker.stages import Clock, StageClock
from bench_worker.step_input import StepInput, StepSource
from bench_worker.step_layout import one_request
from bench_worker.variant import Variant

#: A small layer, so that hundreds of comparisons take minutes: 25 MB of experts, most of which a step reads.
SHAPE = {"hidden": 512, "expert_intermediate": 256, "experts": 32, "top_k": 4}
TOKENS, STEPS, WARM_UP = 8, 200, 50
COMPARISONS, TRIES = 200, 100
#: Part of the step that is added to one stage.
SLOWER = 0.03
STAGES = ("route.select", "permute", "experts", "combine")


class SlowedClock:
    """Takes ``added_us`` longer in ``stage``, in which the processor spins."""

    def __init__(self, clock: Clock, stage: str, added_us: float) -> None:
        self._clock, self._stage, self._added_ns = clock, stage, added_us * 1e3
        self.begin, self.outer, self.read = clock.begin, clock.outer, clock.read

    def inner(self, name: str) -> None:
        if name == self._stage:
            until = time.perf_counter_ns() + self._added_ns
            while time.perf_counter_ns() < until:
                pass
        self._clock.inner(name)


class Pair:
    """Two variants that are equal but for their clocks, and inputs that rotate so that no step finds its own experts in
    the caches."""

    def __init__(self) -> None:
        device = environment.device()
        spec = Experiment.model_validate({"base": {"model": "olmoe-1b-7b", "kernels": {"attention": False}}}).base
        network = Network(models.load(spec.model).model_copy(update=SHAPE), network_key(spec), device)
        self.clock = StageClock(device)
        self._variants = [Variant(spec, network) for _ in range(2)]
        source, layout = StepSource(seed=0), one_request(TOKENS, device)
        self._inputs: list[StepInput] = [source.make(network, spec.load, step, layout) for step in range(31)]
        self.measure([self.clock] * 2, WARM_UP)

    @torch.inference_mode()
    def measure(self, clocks: list[Clock], steps: int = STEPS) -> list[dict[str, np.ndarray]]:
        """Times [S] in µs of both, as `bench_worker.comparison.times_of` gives those of a run; interleaved."""
        read: list[list[dict[str, float]]] = [[], []]
        for step in range(steps):
            for place in order(step, 2):
                self._variants[place].step(self._inputs[step % len(self._inputs)], clocks[place])
                read[place].append(clocks[place].read())
        return [_columns(own) for own in read]

    def compare(self, clocks: list[Clock]) -> tuple[dict[str, Comparison], str | None]:
        """Both over `STEPS` steps, as `bench_worker.comparison.compare_times` gives it."""
        base, contender = self.measure(clocks)
        return compare_times(base, contender, turns(np.arange(STEPS), len(clocks)))


def _columns(read: list[dict[str, float]]) -> dict[str, np.ndarray]:
    leaves = {leaf: np.array([step[leaf] for step in read]) for leaf in read[0] if leaf != LAYER}
    return {"step_us": np.sum(list(leaves.values()), axis=0), **with_stages(leaves)}


def aa_section(comparisons: int = COMPARISONS) -> None:
    pair = Pair()
    steps: list[Comparison] = []
    stages: Counter[str] = Counter()
    for _ in range(comparisons):
        quantities, _cause = pair.compare([pair.clock] * 2)
        steps.append(quantities["step_us"])
        stages.update(one.verdict for name, one in quantities.items() if "." not in name and name != "step_us")
    told_apart = sum(one.verdict != "no significant change" for one in steps)
    ratios = np.array([one.ratio for one in steps])
    errors = np.array([one.standard_error for one in steps])
    covered = sum(low <= 1 <= high for low, high in (one.ci95 or (0, 0) for one in steps))
    print(
        f"{comparisons} real comparisons of equal variants, {STEPS} steps each of {TOKENS} tokens, a layer of {SHAPE}"
    )
    print(f"told apart by the step: {told_apart} (at most {3 * comparisons / COMPARISONS:g})")
    print(f"told apart by a stage: {stages.total() - stages['no significant change']} of {stages.total()}")
    print(f"intervals that hold 1: {covered / comparisons:.1%}")
    print(f"ratio: median {np.median(ratios):.4f}, from {ratios.min():.4f} to {ratios.max():.4f}")
    print(f"standard error of ln ratio: median {np.median(errors):.2%}, largest {errors.max():.2%}")


def slowdown_section(tries: int = TRIES) -> None:
    pair = Pair()
    usual_us = float(np.median(pair.measure([pair.clock] * 2)[0]["step_us"]))
    added = f"{SLOWER:.0%} of a step ({SLOWER * usual_us:.0f} of {usual_us:,.0f} µs)"
    print(f"{added} added to one stage, {STEPS} steps a try")
    print(f"{'stage':>14}{'tries':>7}{'found':>7}{'blamed on it':>14}{'median ratio':>14}")
    totals = Counter[str]()
    for stage in STAGES:
        count = tries // len(STAGES)
        seen = [_slowed(pair, stage, SLOWER * usual_us) for _ in range(count)]
        found = sum(step.verdict == "slower" for step, _ in seen)
        blamed = sum(cause == stage.partition(".")[0] for _, cause in seen)
        totals.update(tries=count, found=found, blamed=blamed)
        print(f"{stage:>14}{count:>7}{found:>7}{blamed:>14}{np.median([step.ratio for step, _ in seen]):>14.3f}")
    print(f"{'all':>14}{totals['tries']:>7}{totals['found']:>7}{totals['blamed']:>14}   (aim: 95% of the tries)")


def _slowed(pair: Pair, stage: str, added_us: float) -> tuple[Comparison, str | None]:
    slow = SlowedClock(pair.clock, stage, added_us)
    quantities, cause = pair.compare([pair.clock, slow])
    return quantities["step_us"], cause
