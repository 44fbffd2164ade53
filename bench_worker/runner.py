"""Runs an experiment: every variant of a condition over the same batches, interleaved step by step."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from bench_worker import capacity, ceilings, environment, machine_state, models, recording, roofline
from bench_worker.calibrate import calibrate_apart
from bench_worker.ceilings import Ceilings
from bench_worker.cuda_steps import DecodeGraphs, idle_share_of_step
from bench_worker.errors import Unavailable
from bench_worker.kernels import registry
from bench_worker.network import Network
from bench_worker.planning import (
    Condition,
    NetworkKey,
    network_key,
    plan_condition,
    recordings_of,
    refuse_what_does_not_fit,
)
from bench_worker.recording import RunRecord, StepRecord
from bench_worker.result import Check, FitKind, Result, Run
from bench_worker.scaling import model_step_us
from bench_worker.spec import Experiment, Measure, PlannedRun
from bench_worker.stages import LAYER, StageClock, WholeClock
from bench_worker.step_input import StepInput, StepSource
from bench_worker.step_layout import Slots
from bench_worker.tuning import choices_note, tune
from bench_worker.variant import Variant
from bench_worker.workload.recordings import Recording
from bench_worker.workload.schedule import Batch

#: One step in this many runs once more with only the outer marks, to check that the stages sum to the layer.
WHOLE_CLOCK_EVERY = 8
#: Steps of a run that the profiler watches (CUDA).
PROFILED_STEPS = 8
#: Warm-up steps are taken from this many first steps of the schedule.
WARMUP_HORIZON = 1000


class Canceled(Exception):
    """The measurement was asked to stop."""


class Report(Protocol):
    """Where progress goes."""

    def progress(self, phase: str, done: int, total: int, variant: str = "", condition: str = "") -> None: ...

    def finished(self, run: Run) -> None: ...


@torch.inference_mode()
def run_experiment(
    experiment: Experiment,
    report: Report,
    *,
    trace_files: Mapping[str, Path] | None = None,
    recording_files: Mapping[str, Path] | None = None,
    allow_paths: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Measure every run that ``experiment`` plans.

    Raises `SpecError` for an unusable trace or recording, `DoesNotFit` before anything is allocated, `Unavailable` for
    a part that can't run here, and `Canceled` when ``stop`` says so between two steps.
    """
    started = time.monotonic()
    device = environment.device()
    conditions = [
        plan_condition(list(runs), trace_files or {}, allow_paths)
        for _, runs in groupby(experiment.runs(), key=lambda run: run.condition)
    ]
    recordings = recordings_of(experiment.runs(), recording_files or {}, allow_paths)
    available = environment.available_bytes(device)
    refuse_what_does_not_fit(conditions, available)
    refuse_what_can_not_run(conditions[0].planned, device)

    bench = Bench(device, available, report, stop, allow_paths, experiment.measure, recordings)
    machine = environment.machine(bench.threads)
    fingerprint = environment.device_fingerprint(machine)
    for threads in sorted({run.spec.kernels.threads or bench.threads for run in conditions[0].planned}):
        kept = ceilings.load(fingerprint, threads)
        if kept is None or kept.warnings:  # what a busy machine lowered is measured again
            report.progress("calibrate", 0, 1)
            kept = calibrate_apart(threads)
        bench.ceilings[threads] = kept
    bench.prepare(conditions)
    before = machine_state.snapshot()
    runs: list[Run] = []
    for place, condition in enumerate(conditions):
        left = max(0.0, experiment.measure.max_seconds - (time.monotonic() - started))
        for run in bench.measure(condition, deadline=time.monotonic() + left / (len(conditions) - place)):
            report.finished(run)
            runs.append(run)
    machine["flags"] = machine_state.flags(before, machine_state.snapshot(), machine["cores"])
    if governor := machine_state.governor_flag(machine["governor"]):
        machine["flags"].append(governor)
    return Result(
        experiment=experiment.document(),
        environment=machine,
        ceilings={str(threads): kept for threads, kept in bench.ceilings.items()},
        runs=runs,
    )


def refuse_what_can_not_run(planned: list[PlannedRun], device: torch.device) -> None:
    """Raise `Unavailable` for the first expert backend that can't run its variant on ``device``."""
    for run in planned:
        if reason := registry.refusal(run.spec, device):
            raise Unavailable(reason)


class Bench:
    """Networks and variants, which live as long as the experiment, and the loop that measures a condition."""

    def __init__(
        self,
        device: torch.device,
        available: int,
        report: Report,
        stop: Callable[[], bool],
        allow_paths: bool,
        plan: Measure,
        recordings: Mapping[str, Recording],
    ) -> None:
        self.device, self.available, self.threads = device, available, torch.get_num_threads()
        self.report, self.stop, self.allow_paths, self.plan = report, stop, allow_paths, plan
        self.recordings = recordings
        self.networks: dict[NetworkKey, Network] = {}
        self.variants: dict[str, Variant] = {}
        self.checks: dict[str, Check] = {}
        #: By number of threads.
        self.ceilings: dict[int, Ceilings] = {}
        self.graphs: dict[Variant, DecodeGraphs] = {}
        self.stage_clock, self.whole_clock = StageClock(device), WholeClock(device)
        self.done = self.total = 0

    def prepare(self, conditions: list[Condition]) -> None:
        """Make weights and variants, and check each variant against the reference. Nothing is timed before."""
        self.total = self.plan.repeats * sum(c.units * len(c.planned) for c in conditions)
        planned = conditions[0].planned  # the same variants in every condition
        for place, run in enumerate(planned):
            self._tell("prepare", place, len(planned), run)
            key = network_key(run.spec)
            if key not in self.networks:
                model = models.load(run.spec.model, allow_paths=self.allow_paths)
                self.networks[key] = Network(model, key, self.device)
            variant = self.variants[run.variant] = Variant(run.spec, self.networks[key])
            self._use_threads(run)
            variant.warm()
            self._tell("check", place, len(planned), run)
            check = self.checks[run.variant] = variant.check()
            if run.spec.kernels.experts == "auto" and check.passed:
                self._tell("tune", place, len(planned), run)
                sizes = (batch.tokens for condition in conditions for batch in condition.batches)
                tune(variant, sizes, self.recordings)

    def measure(self, condition: Condition, deadline: float) -> list[Run]:
        """The runs of ``condition``. A variant that failed its check gets no times; what ``deadline`` (on the monotonic
        clock) cuts off is marked truncated."""
        right = [run for run in condition.planned if self.checks[run.variant].passed]
        for network in self.networks.values():
            network.make_room(condition.concurrency, condition.longest)
        for run in right:
            self.variants[run.variant].reserve(condition.most_tokens)
        if self.device.type == "cuda":  # anew for each condition: the buffers may have moved
            self.graphs = {v: DecodeGraphs(v) for v in self.variants.values() if DecodeGraphs.possible(v)}
        records = {run.variant: RunRecord() for run in right}
        self._warm_up(condition, right, deadline)
        gc.collect()
        gc.disable()
        try:
            for repeat in range(self.plan.repeats):
                if condition.is_open:
                    self._rounds(condition, right, records, repeat, deadline)
                else:
                    self._pass(condition, right, records, repeat, deadline)
        finally:
            gc.enable()
        return [self._result(run, condition, records.get(run.variant)) for run in condition.planned]

    def _warm_up(self, condition: Condition, planned: list[PlannedRun], deadline: float) -> None:
        """Run steps from all over the schedule's beginning, so from all its shapes, and throw them away."""
        horizon = condition.batches[:WARMUP_HORIZON]
        wanted = set(np.linspace(0, len(horizon) - 1, min(self.plan.warmup_steps, len(horizon))).astype(int).tolist())
        source = StepSource(condition.seed, self.plan.repeats, self.recordings)
        slots = Slots(condition.concurrency)
        for index, batch in enumerate(horizon if wanted else []):
            if time.monotonic() > deadline:
                return
            layout = slots.layout(batch, self.device)
            for run in planned if index in wanted else []:
                self._tell("warmup", index, len(horizon), run)
                variant = self.variants[run.variant]
                self._use_threads(run)
                variant.step(source.make(variant.network, run.spec.load, index, layout), self.stage_clock)

    def _pass(
        self,
        condition: Condition,
        planned: list[PlannedRun],
        records: dict[str, RunRecord],
        repeat: int,
        deadline: float,
    ) -> None:
        """The whole schedule once. The order of the variants rotates from step to step, so that none always finds the
        caches that another left."""
        source = StepSource(condition.seed, repeat, self.recordings)
        slots = Slots(condition.concurrency)
        measured = 0
        for index, batch in enumerate(condition.batches):
            if time.monotonic() > deadline:
                break
            layout = slots.layout(batch, self.device)
            turn = index + index // WHOLE_CLOCK_EVERY  # else the sampled steps would always start with the same one
            for place in range(len(planned)):
                run = planned[(turn + place) % len(planned)]
                variant = self.variants[run.variant]
                self._use_threads(run)
                inputs = source.make(variant.network, run.spec.load, index, layout)
                self._measure_step(variant, inputs, records[run.variant], index, batch)
                self.done += 1
                self._tell("measure", self.done, self.total, run)
            measured += 1
        self.done += (len(condition.batches) - measured) * len(planned)
        for record in records.values():
            record.end_pass(condition.batches[:measured], truncated=measured < len(condition.batches))

    def _rounds(
        self,
        condition: Condition,
        planned: list[PlannedRun],
        records: dict[str, RunRecord],
        repeat: int,
        deadline: float,
    ) -> None:
        """The whole open loop once for each variant, in an order that rotates from repeat to repeat. The rounds share
        evenly in the time that is left."""
        for place in range(len(planned)):
            run = planned[(repeat + place) % len(planned)]
            rounds_left = (self.plan.repeats - repeat) * len(planned) - place
            now = time.monotonic()
            self._round(condition, run, records[run.variant], repeat, now + (deadline - now) / rounds_left)

    def _round(self, condition: Condition, run: PlannedRun, record: RunRecord, repeat: int, deadline: float) -> None:
        """One variant serves an open loop on a virtual clock that its own whole-model step times drive."""
        source = StepSource(condition.seed, repeat, self.recordings)
        slots, loop = Slots(condition.concurrency), condition.open_loop()
        variant, before = self.variants[run.variant], self.done
        batches: list[Batch] = []
        start_us: list[float] = []
        now_us, cut = 0.0, False
        self._use_threads(run)
        while not cut and (step := loop.next(now_us)) is not None:
            layout = slots.layout(step.batch, self.device)
            inputs = source.make(variant.network, run.spec.load, len(batches), layout)
            self._measure_step(variant, inputs, record, len(batches), step.batch)
            batches.append(step.batch)
            start_us.append(step.start_us)
            now_us = step.start_us + model_step_us(record.steps[-1].times_us, variant.network.model, run.spec.layers)
            self.done = before + loop.finished
            self._tell("measure", self.done, self.total, run)
            cut = time.monotonic() > deadline
        self.done = before + condition.units
        record.end_pass(batches, loop.finished < condition.units, start_us, condition.arrival_us())

    def _measure_step(self, variant: Variant, inputs: StepInput, record: RunRecord, index: int, batch: Batch) -> None:
        """One step under the stage clock and, on one in `WHOLE_CLOCK_EVERY`, also under the whole clock; which of the
        two comes first alternates."""
        turn, rest = divmod(index, WHOLE_CLOCK_EVERY)
        whole_us = None
        if rest == 0 and turn % 2:
            whole_us = self._whole_layer_us(variant, inputs)
        routed = variant.step(inputs, self.stage_clock)
        times_us = self.stage_clock.read()
        if rest == 0 and not turn % 2:
            whole_us = self._whole_layer_us(variant, inputs)
        if rest == 0 and self.device.type == "cuda":
            self._sample_device(variant, inputs, record, decoding=batch.prefill_tokens == 0)

        outcome = variant.outcome(inputs, routed)
        row_bytes = variant.network.model.hidden * variant.network.dtype.itemsize
        record.add(
            StepRecord(
                index=index,
                prefill_tokens=batch.prefill_tokens,
                decode_tokens=batch.decode_tokens,
                assignments=outcome.assignments,
                dropped=outcome.dropped,
                rows=variant.computed_rows(outcome.rows, batch.tokens),
                moved_bytes=2 * outcome.assignments * row_bytes,  # there and back
                times_us=times_us,
                whole_us=whole_us,
                work=roofline.step_work(variant.spec, variant.network.model, batch, outcome.rows),
            ),
            outcome,
        )

    def _sample_device(self, variant: Variant, inputs: StepInput, record: RunRecord, decoding: bool) -> None:
        """What only a sample of the steps can tell, since it takes the step several times more."""
        graphs = self.graphs.get(variant)
        if decoding and graphs is not None:
            record.graph_us.append(graphs.times_us(inputs.scores[0]))
        if len(record.device_idle) < PROFILED_STEPS:
            record.device_idle.append(idle_share_of_step(variant, inputs))

    def _whole_layer_us(self, variant: Variant, inputs: StepInput) -> float:
        """The MoE layers of the step, timed without their stages."""
        variant.step(inputs, self.whole_clock)
        return self.whole_clock.read()[LAYER]

    def _result(self, planned: PlannedRun, condition: Condition, record: RunRecord | None) -> Run:
        model = self.variants[planned.variant].network.model
        fit: dict[FitKind, capacity.Fit] = {
            "deployment": capacity.fit(planned.spec, None, tokens_per_sequence=condition.longest),
            "measurement": condition.fit(planned.spec, self.available),
        }
        kept = self.ceilings[planned.spec.kernels.threads or self.threads]
        recorded = self.recordings.get(planned.spec.load.recording or "")
        run = recording.run(
            planned, model, self.checks[planned.variant], fit, condition.longest, record, kept, recorded
        )
        variant = self.variants[planned.variant]
        run.choices, run.refused = variant.choices, variant.refused
        if variant.choices:
            run.notes.append(choices_note(variant.choices))
        return run

    def _use_threads(self, planned: PlannedRun) -> None:
        threads = planned.spec.kernels.threads or self.threads
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
            torch.zeros(1 << 20).add_(1)  # the first parallel work makes the threads: not inside a step's clock

    def _tell(self, phase: str, done: int, total: int, planned: PlannedRun) -> None:
        """Report, and leave if asked to."""
        if self.stop():
            raise Canceled
        self.report.progress(phase, done, total, planned.variant, planned.condition)
