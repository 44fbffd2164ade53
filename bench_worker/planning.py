"""What an experiment will execute, and whether it fits, before anything is allocated. Torch-free: the form refuses what
the runner would, in the same words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from bench_worker import capacity, models
from bench_worker.errors import DoesNotFit, SpecError
from bench_worker.spec import PlannedRun, Spec, Workload
from bench_worker.spec_rules import beyond_kv_cache
from bench_worker.workload import Request, arrivals
from bench_worker.workload import requests as traces
from bench_worker.workload.recordings import Recording, RecordingError, read_recording
from bench_worker.workload.schedule import Batch, Limits, OpenLoop, closed_loop


class NetworkKey(NamedTuple):
    """What two variants must have in common to share weights. ``held``: all of a layer's, only the experts of one rank,
    or nothing. ``tp``: ranks that attention's heads and the vocabulary are divided among."""

    model: str
    layers: int
    dtype: str
    seed: int
    attention: bool
    held: Literal["layers", "rank", "nothing"] = "layers"
    tp: int = 1


def network_key(spec: Spec) -> NetworkKey:
    tp = spec.parallel.layout.tp if spec.kernels.attention else 1
    key = NetworkKey(spec.model, spec.layers, spec.kernels.dtype, spec.workload.seed, spec.kernels.attention, tp=tp)
    if spec.parallel.count_only:
        return key._replace(held="nothing")
    return key._replace(held="rank") if spec.parallel.mode == "distributed" else key


@dataclass(frozen=True)
class Condition:
    """One workload corner: the runs measured together, their requests and their steps.

    In open loop the steps depend on how long each takes; ``batches`` are then those of a closed loop over the same
    requests, which warm up. ``prefixes``: the blocks of each prompt, where they are reused.
    """

    planned: list[PlannedRun]
    requests: list[Request]
    batches: list[Batch]
    prefixes: list[list[int]] | None = None

    @property
    def name(self) -> str:
        return self.planned[0].condition

    @property
    def concurrency(self) -> int:
        return self._work.concurrency

    @property
    def seed(self) -> int:
        return self._work.seed

    @property
    def is_open(self) -> bool:
        """Whether requests arrive at their own time."""
        return self._work.arrivals != "closed"

    @property
    def most_tokens(self) -> int:
        """Tokens of the fullest step."""
        return self._work.max_batch_tokens if self.is_open else max(batch.tokens for batch in self.batches)

    @property
    def units(self) -> int:
        """What progress counts: steps or, where they aren't known before, requests."""
        return len(self.requests) if self.is_open else len(self.batches)

    def arrival_us(self) -> np.ndarray:
        """When each request is meant to arrive, in open loop."""
        work = self._work
        if work.arrivals == "trace":
            return arrivals.recorded(self.requests, work.speedup or 1.0)
        assert work.rate is not None, "the rules of the experiment ask for it"
        return arrivals.poisson(len(self.requests), work.rate, work.seed)

    def open_loop(self) -> OpenLoop:
        """A fresh engine for one variant."""
        work = self._work
        limits = Limits(work.concurrency, work.max_batch_tokens, work.kv_tokens)
        return OpenLoop(self.requests, self.arrival_us(), limits, self.prefixes)

    @property
    def prompt_tokens(self) -> int:
        """Of all requests together."""
        return sum(request.prompt_tokens for request in self.requests)

    def fit(self, spec: Spec, available: int | None, *, on_gpu: bool = False) -> capacity.Fit:
        """What measuring ``spec``, one of its runs, holds, against ``available`` bytes of the CPU's or the GPU's."""
        return capacity.fit_measurement(
            spec, available, tokens_per_sequence=self.longest, prompt_tokens=self.prompt_tokens, on_gpu=on_gpu
        )

    @property
    def _work(self) -> Workload:
        return self.planned[0].spec.workload

    @property
    def longest(self) -> int:
        return traces.longest_sequence(self.requests)


def requests_of(work: Workload, trace_files: Mapping[str, Path], allow_paths: bool = False) -> list[Request]:
    """The requests of a workload, with its lengths. Raises `SpecError` where its trace can't give them, and where one
    of them is beyond the KV cache."""
    try:
        recorded = traces.load(work.trace, work.requests, work.seed, trace_files, allow_paths)
    except traces.TraceError as error:
        raise SpecError("base.workload.trace", work.trace, str(error)) from None
    requests = traces.with_lengths(recorded, work.prompt_tokens, work.output_tokens)
    for request in requests if work.kv_tokens is not None else []:
        if problem := beyond_kv_cache(work, request.prompt_tokens, request.output_tokens):
            raise SpecError("base.workload.kv_tokens", work.kv_tokens, problem)
    return requests


def prefixes_of(work: Workload, trace_files: Mapping[str, Path]) -> list[list[int]] | None:
    """The blocks of each prompt, where the workload reuses them. Raises `SpecError` where its trace names none."""
    if not work.prefix_reuse:
        return None
    try:
        return traces.read_prefixes(trace_files.get(work.trace, Path(work.trace)), work.requests, Path(work.trace).name)
    except traces.TraceError as error:
        raise SpecError("base.workload.prefix_reuse", True, str(error)) from None


def recordings_of(
    planned: Iterable[PlannedRun], files: Mapping[str, Path], allow_paths: bool = False
) -> dict[str, Recording]:
    """The recordings that ``planned`` runs name, read from ``files`` or, where paths are allowed, from their own path.

    Raises `SpecError` where one can't be read, or isn't the load of its run's model.
    """
    planned = list(planned)
    found: dict[str, Recording] = {}
    for name in dict.fromkeys(run.spec.load.recording for run in planned):
        if name is None:
            continue
        try:
            if name not in files and not allow_paths:
                raise RecordingError(f"{name}: no recording of that name is here")
            found[name] = read_recording(files.get(name, Path(name)), name if name in files else None)
        except RecordingError as error:
            raise SpecError("base.load.recording", name, str(error)) from None
    refuse_misfits(planned, found, allow_paths)
    return found


def refuse_misfits(
    planned: Iterable[PlannedRun], recordings: Mapping[str, Recording], allow_paths: bool = False
) -> None:
    """Raise `SpecError` unless the recording that a run names, one of ``recordings``, is the load of its model."""
    for run in planned:
        name = run.spec.load.recording
        if name is None:
            continue
        model = models.load(run.spec.model, allow_paths=allow_paths)
        if reason := recordings[name].misfit(model.experts, model.top_k, model.name):
            raise SpecError("base.load.recording", name, f"{Path(name).name}: {reason}")


def plan_condition(planned: list[PlannedRun], trace_files: Mapping[str, Path], allow_paths: bool) -> Condition:
    """The requests and the steps of a workload corner. Its variants share the workload, so the first one tells."""
    work = planned[0].spec.workload
    requests = requests_of(work, trace_files, allow_paths)
    prefixes = prefixes_of(work, trace_files)
    try:
        batches = closed_loop(
            requests, work.concurrency, work.max_batch_tokens, kv_tokens=work.kv_tokens, prefixes=prefixes
        )
        return Condition(planned, requests, batches, prefixes)
    except ValueError as error:
        raise SpecError("base.workload.requests", work.requests, str(error)) from None


class Needed(NamedTuple):
    """What a measurement holds: the models, and the largest network's memory with the total of all."""

    models: str
    fit: capacity.Fit


def memory_needed(conditions: list[Condition], available: int | None, *, on_gpu: bool = False) -> Needed:
    """All networks side by side, each at the condition where it needs most, as `Condition.fit` says of each, with the
    experts of every quantization."""
    most: dict[NetworkKey, capacity.Fit] = {}
    experts: dict[tuple[NetworkKey, str], int] = {}
    for condition in conditions:
        for run in condition.planned:
            fit = condition.fit(run.spec, available, on_gpu=on_gpu)
            key = network_key(run.spec)
            if key not in most or fit.total_bytes > most[key].total_bytes:
                most[key] = fit
            own = key, run.spec.kernels.quantization
            experts[own] = max(experts.get(own, 0), _expert_bytes(fit))
    processes = [fit.parts["process"] for fit in most.values()]
    total = sum(fit.total_bytes - _expert_bytes(fit) for fit in most.values()) + sum(experts.values())
    total += max(processes) - sum(processes)
    largest = max(most.values(), key=lambda fit: fit.total_bytes)
    return Needed(
        " and ".join(dict.fromkeys(key.model for key in most)), largest.model_copy(update={"total_bytes": total})
    )


def _expert_bytes(fit: capacity.Fit) -> int:
    """The routed experts, and what a backend packs of them."""
    return fit.parts["experts"] + fit.parts.get("packed", 0)


def refuse_what_does_not_fit(conditions: list[Condition], available: int, *, on_gpu: bool = False) -> None:
    """Raise `DoesNotFit` unless all networks fit side by side."""
    needed = memory_needed(conditions, available, on_gpu=on_gpu)
    if needed.fit.total_bytes > available:
        raise DoesNotFit(f"measuring {needed.models} {capacity.needs(needed.fit)}")
