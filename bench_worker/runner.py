"""Runs an experiment: every variant of a condition over the same batches, interleaved step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path

import torch

from bench_worker import ceilings, comparison, environment, machine_state, verdict
from bench_worker.bench import Bench, Canceled, Report
from bench_worker.calibrate import calibrate_apart
from bench_worker.errors import Unavailable
from bench_worker.kernels import registry
from bench_worker.parallel.trail import Pace
from bench_worker.parallel.world import Alone, World
from bench_worker.planning import plan_condition, recordings_of, refuse_what_does_not_fit
from bench_worker.result import Result, Run
from bench_worker.spec import Experiment, PlannedRun

__all__ = ["Canceled", "Report", "run_experiment"]


@torch.inference_mode()
def run_experiment(
    experiment: Experiment,
    report: Report,
    *,
    trace_files: Mapping[str, Path] | None = None,
    recording_files: Mapping[str, Path] | None = None,
    allow_paths: bool = False,
    stop: Callable[[], bool] = lambda: False,
    crew: Alone | World | None = None,
) -> Result:
    """Measure every run that ``experiment`` plans, alone or as one of a ``crew``.

    Raises `SpecError` for an unusable trace or recording, `DoesNotFit` before anything is allocated, `Unavailable` for
    a part that can't run here, and `Canceled` when ``stop`` says so between two steps.
    """
    started, crew = time.monotonic(), crew or Alone()
    crew.phase("what is planned", Pace.SILENCE)
    device = environment.device()
    conditions = [
        plan_condition(list(runs), trace_files or {}, allow_paths)
        for _, runs in groupby(experiment.runs(), key=lambda run: run.condition)
    ]
    recordings = recordings_of(experiment.runs(), recording_files or {}, allow_paths)
    available = environment.available_bytes(device)
    refuse_what_does_not_fit(conditions, available, on_gpu=device.type == "cuda")
    planned = conditions[0].planned  # the same variants in every condition
    refuse_what_can_not_run(planned, device)

    bench = Bench(device, available, report, stop, allow_paths, experiment.measure, recordings, crew)
    machine = environment.machine(bench.threads, crew.processors)
    fingerprint = environment.device_fingerprint(machine)
    needed = {ceilings.INT8} & {run.spec.kernels.quantization for run in planned}
    for threads in sorted({run.spec.kernels.threads or bench.threads for run in planned}):
        kept = ceilings.load(fingerprint, threads)
        if kept is not None and not needed <= kept.matrix.keys():  # of before this format was measured
            kept = None
        if isinstance(crew, World):  # measuring them would need the machine to itself
            bench.ceilings |= {} if kept is None else {threads: kept}
            continue
        if kept is None or kept.warnings:  # what a busy machine lowered is measured again
            report.progress("calibrate", 0, 1)
            kept = calibrate_apart(threads)
        bench.ceilings[threads] = kept
    calibrated = dict(bench.ceilings)
    bench.prepare(conditions)
    before = machine_state.snapshot()
    runs: list[Run] = []
    for place, condition in enumerate(conditions):
        left = max(0.0, experiment.measure.max_seconds - (time.monotonic() - started))
        for run in bench.measure(condition, deadline=time.monotonic() + left / (len(conditions) - place)):
            report.finished(run)
            runs.append(run)
    for threads, seen in bench.ceilings.items():
        if seen is not calibrated[threads]:
            ceilings.keep(fingerprint, seen)
    own_threads = any(run.spec.kernels.threads is None for run in planned)
    machine["flags"] = machine_state.told(before, machine, own_threads=own_threads)
    return Result(
        experiment=experiment.document(),
        environment=machine,
        ceilings={str(threads): kept for threads, kept in bench.ceilings.items()},
        runs=runs,
        comparisons=comparison.compare_all(runs) if bench.crew.is_first else [],  # one rank's result is kept
        verdict=verdict.overall(runs, device.type) if bench.crew.is_first else None,
    )


def refuse_what_can_not_run(planned: list[PlannedRun], device: torch.device) -> None:
    """Raise `Unavailable` for the first expert backend that can't run its variant on ``device``."""
    for run in planned:
        if reason := registry.refusal(run.spec, device):
            raise Unavailable(reason)
