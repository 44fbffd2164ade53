"""The loop that measures a condition: its variants over the same batches, with a clock that only the meter reads."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch

from bench_worker import capacity, models, recording
from bench_worker.ceilings import Ceilings
from bench_worker.meter import Meter
from bench_worker.network import Network
from bench_worker.parallel.build import build
from bench_worker.parallel.counting import CountingVariant
from bench_worker.parallel.meter import measure as measure_ranks
from bench_worker.parallel.report import add_ranks
from bench_worker.parallel.trail import Pace
from bench_worker.parallel.variant import ParallelVariant
from bench_worker.parallel.world import Alone, World
from bench_worker.planning import Condition, NetworkKey, network_key
from bench_worker.recording import RunRecord
from bench_worker.result import Check, FitKind, Run
from bench_worker.rotation import order
from bench_worker.scaling import model_step_us
from bench_worker.spec import Measure, PlannedRun
from bench_worker.step_input import StepInput, StepSource
from bench_worker.step_layout import Slots, StepLayout
from bench_worker.tuning import choices_note, tune
from bench_worker.variant import Variant
from bench_worker.watch import Key, Watch
from bench_worker.workload.recordings import Recording
from bench_worker.workload.schedule import Batch

AnyVariant = Variant | ParallelVariant | CountingVariant

#: Warm-up steps are taken from this many first steps of the schedule.
WARMUP_HORIZON = 1000


class Canceled(Exception):
    """The measurement was asked to stop."""


class Report(Protocol):
    """Where progress goes."""

    def progress(self, phase: str, done: int, total: int, variant: str = "", condition: str = "") -> None: ...

    def finished(self, run: Run) -> None: ...


class Bench:
    """Networks and variants, which live as long as the experiment, and the loop that measures a condition.

    ``crew``: the processes that measure together. All of them do the same, and stop at the same step.
    """

    def __init__(
        self,
        device: torch.device,
        available: int,
        report: Report,
        stop: Callable[[], bool],
        allow_paths: bool,
        plan: Measure,
        recordings: Mapping[str, Recording],
        crew: Alone | World,
    ) -> None:
        self.device, self.available, self.threads = device, available, torch.get_num_threads()
        self.report, self.stop, self.allow_paths, self.plan = report, stop, allow_paths, plan
        self.recordings, self.crew = recordings, crew
        self.networks: dict[NetworkKey, Network] = {}
        self.variants: dict[str, AnyVariant] = {}
        self.checks: dict[str, Check] = {}
        #: By number of threads.
        self.ceilings: dict[int, Ceilings] = {}
        self.watch = Watch(device, [], {})
        self.meter = Meter(device)
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
                self.networks[key] = Network(model, key, self.device, self.crew.sign, self.crew.members(key.tp))
            variant = self.variants[run.variant] = self._variant(run, conditions)
            self._use_threads(run)
            variant.warm()
            self._tell("check", place, len(planned), run)
            check = self.checks[run.variant] = variant.check()
            if run.spec.kernels.experts == "auto" and check.passed and isinstance(variant, Variant):
                self._tell("tune", place, len(planned), run)
                sizes = (batch.tokens for condition in conditions for batch in condition.batches)
                tune(variant, sizes, self.recordings)
        if self.device.type == "cpu" and isinstance(self.crew, Alone):
            timed = (run for run in planned if not isinstance(self.variants[run.variant], CountingVariant))
            self.watch = Watch(self.device, dict.fromkeys(map(self._key, timed)), self.ceilings)

    def _variant(self, run: PlannedRun, conditions: list[Condition]) -> AnyVariant:
        network = self.networks[network_key(run.spec)]
        if run.spec.parallel.mode == "single":
            return Variant(run.spec, network)
        return build(run.spec, network, conditions, self.recordings, self.crew.sign)

    def measure(self, condition: Condition, deadline: float) -> list[Run]:
        """The runs of ``condition``. A variant that failed its check gets no times; what ``deadline`` (on the monotonic
        clock) cuts off is marked truncated."""
        self.crew.phase("the room that steps need", Pace.SILENCE)
        right = [run for run in condition.planned if self.checks[run.variant].passed]
        for network in self.networks.values():
            network.make_room(condition.concurrency, condition.longest)
        for run in right:
            self.variants[run.variant].reserve(condition.most_tokens)
        self.meter.begin_condition(v for v in self.variants.values() if isinstance(v, Variant))
        records = {run.variant: RunRecord() for run in right}
        self._warm_up(condition, right, deadline)
        self.crew.phase("warming up", Pace.SILENCE)
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
        self.ceilings = self.watch.raised(self.ceilings)
        self.crew.phase("what was measured", Pace.SILENCE)
        return [self._result(run, condition, records.get(run.variant)) for run in condition.planned]

    def _warm_up(self, condition: Condition, planned: list[PlannedRun], deadline: float) -> None:
        """Run steps from all over the schedule's beginning, so from all its shapes, and throw them away."""
        horizon = condition.batches[:WARMUP_HORIZON]
        wanted = set(np.linspace(0, len(horizon) - 1, min(self.plan.warmup_steps, len(horizon))).astype(int).tolist())
        source = StepSource(condition.seed, self.plan.repeats, self.recordings)
        slots = Slots(condition.concurrency)
        for index, batch in enumerate(horizon if wanted else []):
            if self._past(deadline):
                return
            layout = slots.layout(batch, self.device)
            for run in planned if index in wanted else []:
                self._tell("warmup", index, len(horizon), run)
                variant = self.variants[run.variant]
                self._use_threads(run)
                inputs = _inputs(source, variant, index, layout)
                if isinstance(variant, Variant):
                    self.meter.discard(variant, inputs)
                else:
                    variant.run(inputs)

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
        self._look(planned, records)
        for index, batch in enumerate(condition.batches):
            if self._past(deadline):
                break
            self._look(planned, records, only_if_due=True)
            layout = slots.layout(batch, self.device)
            for place in order(index, len(planned)):
                run = planned[place]
                variant = self.variants[run.variant]
                self._use_threads(run)
                inputs = _inputs(source, variant, index, layout)
                self._measure(variant, inputs, records[run.variant], index, batch)
                self.done += 1
                self._tell("measure", self.done, self.total, run)
            measured += 1
        self._look(planned, records)
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
        self._look([run], {run.variant: record})
        while not cut and (step := loop.next(now_us)) is not None:
            self._look([run], {run.variant: record}, only_if_due=True)
            layout = slots.layout(step.batch, self.device)
            inputs = _inputs(source, variant, len(batches), layout)
            self._measure(variant, inputs, record, len(batches), step.batch)
            batches.append(step.batch)
            start_us.append(step.start_us)
            now_us = step.start_us + model_step_us(record.steps[-1].times_us, variant.network.model, run.spec.layers)
            self.done = before + loop.finished
            self._tell("measure", self.done, self.total, run)
            cut = self._past(deadline)
        self._look([run], {run.variant: record})
        self.done = before + condition.units
        record.end_pass(batches, loop.finished < condition.units, start_us, condition.arrival_us())

    def _measure(self, variant: AnyVariant, inputs: StepInput, record: RunRecord, index: int, batch: Batch) -> None:
        if isinstance(variant, Variant):
            self.meter.measure(variant, inputs, record, index, batch)
        else:
            measure_ranks(variant, inputs, record, index, batch)

    def _result(self, planned: PlannedRun, condition: Condition, record: RunRecord | None) -> Run:
        model = self.variants[planned.variant].network.model
        fit: dict[FitKind, capacity.Fit] = {
            "deployment": capacity.fit(planned.spec, None, tokens_per_sequence=condition.longest),
            "measurement": condition.fit(planned.spec, self.available, on_gpu=self.device.type == "cuda"),
        }
        kept = self.ceilings.get(planned.spec.kernels.threads or self.threads)
        recorded = self.recordings.get(planned.spec.load.recording or "")
        run = recording.run(
            planned, model, self.checks[planned.variant], fit, condition.longest, record, kept, recorded
        )
        variant = self.variants[planned.variant]
        run.choices, run.refused = variant.choices, variant.refused
        if variant.choices:
            run.notes.append(choices_note(variant.choices))
        if not isinstance(variant, Variant):
            add_ranks(run, variant, record)
        return run

    def _look(self, planned: list[PlannedRun], records: Mapping[str, RunRecord], only_if_due: bool = False) -> None:
        """See how the machine is around the runs that take turns."""
        if self.watch.is_due or not only_if_due:
            self.watch.look([(self._key(run), records[run.variant]) for run in planned])

    def _key(self, planned: PlannedRun) -> Key:
        return Key(planned.spec.kernels.threads or self.threads, planned.spec.kernels.dtype)

    def _use_threads(self, planned: PlannedRun) -> None:
        threads = planned.spec.kernels.threads or self.threads
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
            torch.zeros(1 << 20).add_(1)  # the first parallel work makes the threads: not inside a step's clock

    def _past(self, deadline: float) -> bool:
        return self.crew.agree(time.monotonic() > deadline)

    def _tell(self, phase: str, done: int, total: int, planned: PlannedRun) -> None:
        """Report, and leave if asked to."""
        if self.crew.agree(self.stop()):
            raise Canceled
        in_steps = phase in ("warmup", "measure")
        self.crew.phase(f"step {done + 1}" if phase == "measure" else phase, Pace.STEPS if in_steps else Pace.SILENCE)
        self.report.progress(phase, done, total, planned.variant, planned.condition)


def _inputs(source: StepSource, variant: AnyVariant, index: int, layout: StepLayout) -> StepInput:
    """On several ranks an executed layer stands for one of the model's, since its experts are placed for it."""
    load = variant.spec.load
    return source.make(variant.network, load, index, layout, layers_stay=not isinstance(variant, Variant))
