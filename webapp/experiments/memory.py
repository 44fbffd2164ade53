"""What an experiment takes, before it is queued; what no machine of the pool can measure is refused, in the measuring
program's own words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from django.conf import settings

from bench_worker import capacity, devices, kernel_report
from bench_worker.kernels import rules
from bench_worker.planning import Condition, memory_needed, refuse_misfits, refuse_what_does_not_fit, requests_of
from bench_worker.spec import Experiment, Spec, SpecError
from webapp.experiments import backends, machines
from webapp.experiments.estimate import Estimate, estimate
from webapp.experiments.memory_bar import MemoryBar, memory_bar
from webapp.experiments.models import Machine
from webapp.experiments.redundancy import Cost, redundancy_cost
from webapp.traces.recording_store import loads_of
from webapp.traces.store import trace_files

QUANTIZATION = "kernels.quantization"


@dataclass(frozen=True)
class Outlook:
    """Runs; bytes of the whole model as ``deployment`` (the baseline's, at its largest corner), and to measure; how
    long, where experiments like it have run."""

    variants: int
    corners: int
    deployment: capacity.Fit
    #: What is deployed: the baseline at that corner.
    deployed: Spec
    #: How many devices like the machine's it needs; None where one is enough or none is known, or no number is enough.
    least: devices.Enough | None
    measurement_bytes: int
    #: The machine of the pool with the largest device; None where none has registered.
    machine: Machine | None
    device_bytes: int | None
    time: Estimate | None

    @property
    def runs(self) -> int:
        return self.variants * self.corners

    @property
    def bar(self) -> MemoryBar:
        """The deployment against a device like the machine's."""
        return memory_bar(self.deployment)

    @property
    def copies(self) -> Cost | None:
        """What redundant experts take of each device; None where there are none."""
        return redundancy_cost(self.deployed)

    @property
    def fits(self) -> bool:
        return self.device_bytes is None or self.measurement_bytes <= self.device_bytes


def check(experiment: Experiment, pool: str | None = None) -> None:
    """Raise `SpecError` where trace or recording can't be used or no machine has the kernels, and `DoesNotFit` where
    every machine is too small.

    A pool whose machines are not known yet finds nothing missing or too large here; its worker will.
    """
    conditions = conditions_of(experiment)
    known = machines.of_pool(pool or settings.MOESCOPE_POOL)
    backends.refuse(experiment, backends.reports([machine.details for machine in known]))
    varied = experiment.vary is not None and experiment.vary.field == QUANTIZATION
    specs = (spec for _, spec in experiment.variants())
    _refuse_beyond_cpus(specs, known, "vary.values" if varied else f"base.{QUANTIZATION}")
    machine = _largest(known)
    if machine is not None:
        details = machine.details
        refuse_what_does_not_fit(conditions, device_bytes(details), on_gpu=on_gpu(details))


def check_kernels(asked: kernel_report.Asked, pool: str) -> None:
    """Raise `DoesNotFit` where every machine of ``pool`` is too small for the table of kernels, and `SpecError` where
    none has kernels for its format."""
    known = machines.of_pool(pool)
    _refuse_beyond_cpus([asked.spec], known, f"base.{QUANTIZATION}")
    machine = _largest(known)
    if machine is not None:
        details = machine.details
        kernel_report.need(asked.spec, asked.tokens, device_bytes(details), on_gpu=on_gpu(details))


def _refuse_beyond_cpus(specs: Iterable[Spec], known: Sequence[Machine], field: str) -> None:
    """Raise `SpecError` under ``field`` for the first of ``specs`` that CPUs alone compute, if all have GPUs."""
    for spec in specs if known and all(on_gpu(machine.details) for machine in known) else ():
        if reason := rules.beyond_cpus(spec, "cuda"):
            raise SpecError(field, spec.kernels.quantization, rules.bare(reason))


def outlook(experiment: Experiment, pool: str | None = None) -> Outlook:
    """What ``experiment`` takes. Raises `SpecError` where trace or recording can't be used."""
    conditions = conditions_of(experiment)
    machine = largest_machine(pool)
    free = None if machine is None else device_bytes(machine.details)
    deployments = [
        (capacity.fit(spec, free, tokens_per_sequence=condition.longest), spec)
        for condition in conditions
        for spec in [condition.planned[0].spec]
    ]
    deployment, deployed = max(deployments, key=lambda one: one[0].total_bytes)
    needed = memory_needed(conditions, free, on_gpu=machine is not None and on_gpu(machine.details))
    least = None
    if free is not None and not deployment.fits:
        least = devices.enough(deployed, free, tokens_per_sequence=deployment.tokens_per_sequence)
    return Outlook(
        variants=len(experiment.variants()),
        corners=len(conditions),
        deployment=deployment,
        deployed=deployed,
        least=least,
        measurement_bytes=needed.fit.total_bytes,
        machine=machine,
        device_bytes=free,
        time=estimate(experiment, pool or settings.MOESCOPE_POOL),
    )


def conditions_of(experiment: Experiment) -> list[Condition]:
    """The corners with their requests but without their steps, which take long to lay out and need no memory.

    Raises `SpecError` where the trace can't give the requests, or a recording isn't the load of its model.
    """
    runs = experiment.runs()
    refuse_misfits(runs, loads_of(run.spec.load.recording for run in runs))
    planned = [list(runs) for _, runs in groupby(runs, key=lambda run: run.condition)]
    most = max(runs[0].spec.workload.requests for runs in planned)
    with TemporaryDirectory(prefix="moescope-check-") as directory:
        files = trace_files(experiment.base.workload.trace, Path(directory), most)
        return [Condition(runs, requests_of(runs[0].spec.workload, files), batches=[]) for runs in planned]


def largest_machine(pool: str | None = None) -> Machine | None:
    return _largest(machines.of_pool(pool or settings.MOESCOPE_POOL))


def _largest(known: list[Machine]) -> Machine | None:
    return max(known, key=lambda machine: device_bytes(machine.details), default=None)


def device_bytes(details: dict[str, Any]) -> int:
    """Memory of the device that measures: the first GPU's, or the computer's own."""
    device = details["gpus"][0] if on_gpu(details) else details
    return int(device["memory_bytes"])


def on_gpu(details: dict[str, Any]) -> bool:
    """Whether a GPU of the machine measures."""
    return bool(details["gpus"])
