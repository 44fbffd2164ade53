"""From the raw times of every step to a run's result. Pure: no clock, no tensor.

A step's raw times are the sums that its clock read, by leaf stage (``route.gate``, ``experts``, ``attention``, …), over
all executed layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from bench_worker import assessment, noise, served
from bench_worker.capacity import Fit
from bench_worker.ceilings import Ceilings
from bench_worker.models import Model
from bench_worker.noise import Seen
from bench_worker.outcome import Outcome, Routed
from bench_worker.rank_record import RankStep, idle_share, imbalance, rank_steps
from bench_worker.result import (
    LAYER_STAGES,
    Check,
    ClockCheck,
    FitKind,
    GraphTimes,
    Origin,
    RankSteps,
    Requests,
    Run,
    Scale,
    Steps,
    Summary,
)
from bench_worker.roofline import Limits, Work
from bench_worker.roofline import floor_us as floor
from bench_worker.run_notes import run_notes
from bench_worker.scaling import IDLE, LAYER, in_layer, scale, step_us, top, with_stages
from bench_worker.served import Pass
from bench_worker.serving import RequestMetrics
from bench_worker.spec import PlannedRun, Spec
from bench_worker.stats import distribution
from bench_worker.strategies import STRATEGIES
from bench_worker.workload.recordings import Recording
from bench_worker.workload.schedule import Batch


@dataclass(frozen=True)
class StepRecord:
    """One step of one variant. Counts are sums over the executed layers; ``times_us`` and ``work`` likewise, by leaf
    stage. ``whole_us``: the MoE layers timed as a whole, where this step was timed both ways."""

    index: int
    prefill_tokens: int
    decode_tokens: int
    assignments: int
    dropped: int
    rows: int
    moved_bytes: int
    times_us: dict[str, float]
    whole_us: float | None
    #: What each of several ranks did; None where there is one.
    ranks: RankStep | None = None
    work: dict[str, Work] = field(default_factory=dict)


class RunRecord:
    """All steps of one run, pass by pass."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.passes: list[Pass] = []
        self.routed: Routed | None = None
        #: For each step how many experts had rows, and how many few.
        self.active: list[int] = []
        self.few: list[int] = []
        #: Of sampled steps on CUDA: (eager, graph) times of a layer in µs, and idle shares of the device.
        self.graph_us: list[tuple[float, float]] = []
        self.device_idle: list[float] = []
        #: What probes of the machine saw meanwhile, and what their kernels reached when it was calibrated.
        self.seen: list[Seen] = []
        self.usual: Seen | None = None
        self.truncated = False

    def add(self, step: StepRecord, outcome: Outcome) -> None:
        """``outcome``: what the step's routing came to."""
        self.steps.append(step)
        if self.routed is None:
            self.routed = Routed(*outcome.rows.shape)
        self.routed.add(outcome)
        self.active.append(int(np.count_nonzero(outcome.rows)))
        self.few.append(int(np.count_nonzero((outcome.rows > 0) & (outcome.rows <= assessment.FEW_ROWS))))

    def end_pass(
        self,
        batches: list[Batch],
        truncated: bool,
        start_us: list[float] | None = None,
        arrival_us: np.ndarray | None = None,
    ) -> None:
        self.passes.append(Pass(batches, start_us, arrival_us))
        self.truncated |= truncated


def run(
    planned: PlannedRun,
    model: Model,
    check: Check,
    fit: dict[FitKind, Fit],
    longest: int,
    record: RunRecord | None,
    ceilings: Ceilings | None = None,
    recorded: Recording | None = None,
) -> Run:
    """The result of one planned run. A variant that failed its check has no record, and gets no times.

    ``longest``: tokens of the trace's longest request, prompt and output. ``ceilings``: what its stages are held
    against. ``recorded``: the load it replays.
    """
    spec = planned.spec
    leaves = record.steps[0].times_us if record and record.steps else {}
    scaling = scale(model, spec.layers, [leaf for leaf in leaves if leaf != LAYER])
    result = Run(
        variant=planned.variant,
        condition=planned.condition,
        spec=spec,
        status="ok" if check.passed else "wrong result",
        check=check,
        fit=fit,
        scale=scaling,
        notes=[
            *_truncated_note(record),
            *served.workload_notes(spec, record.passes if record else []),
            *run_notes(spec, model, longest, recorded),
        ],
    )
    if record is None or not record.steps:
        return result
    whole = [step for step in record.steps if step.whole_us]
    ratios = [sum(us for leaf, us in s.times_us.items() if in_layer(leaf)) / (s.whole_us or 1) for s in whole]
    measured = {leaf: 1 if top(leaf) == "other" else spec.layers for leaf in scaling.counts}
    origin: Origin = "measured" if spec.kernels.attention and scaling.counts == measured else "scaled"
    total_us = step_us(per_layer(record, scaling), scaling)
    seen = served.serve(record.passes, total_us) if spec.kernels.attention else served.NOTHING
    assert record.routed is not None
    result.clock = ClockCheck(sampled_steps=len(whole), sum_over_whole=float(np.median(ratios)) if ratios else None)
    result.steps = steps(record, scaling)
    result.requests = requests(seen.metrics) if spec.kernels.attention else None
    result.summary = summary(record, scaling, seen, spec)
    result.notes += served.goodput_notes(spec, seen)
    result.expert_assignments = record.routed.expert_assignments.tolist()
    result.routing = record.routed.outcome(STRATEGIES[spec.routing.strategy].causal)
    limits = None if ceilings is None else ceilings.limits(spec.kernels.dtype, fit["measurement"].weights_bytes)
    assess(result, record, scaling, limits)
    if limits is not None and record.usual is not None and record.steps:
        beside_the_machine(result, record, limits, record.usual)
    result.origins = {"layer_us": "measured", "stages_us": "measured", "step_us": origin, "requests": origin}
    return result


def assess(result: Run, record: RunRecord, scaling: Scale, limits: Limits | None) -> None:
    """Add to ``result`` how near its stages came to ``limits``, how steady it was, and what that says in words."""
    assert result.summary is not None
    leaves = per_layer(record, scaling)
    times = with_stages(leaves)
    layers = scaling.executed_layers
    layer_us = _layer_us(times)
    floor_us = np.zeros(len(record.steps))
    if limits is not None:
        known = [leaf for leaf in leaves if any(leaf in step.work for step in record.steps)]
        work = {leaf: [step.work.get(leaf, Work()) for step in record.steps] for leaf in known}
        parts = {leaf: 1 if top(leaf) == "other" else layers for leaf in leaves}
        result.summary.limits = assessment.limits_of(times, work, parts, limits)
        floor_us = np.array([
            sum(floor(own, limits) for leaf, own in step.work.items() if in_layer(leaf))
            for step in record.steps
        ])  # fmt: skip
    tokens = np.array([step.prefill_tokens + step.decode_tokens for step in record.steps])
    result.noise = assessment.noise_of(layer_us, floor_us, tokens)
    if record.graph_us:
        eager, graph = np.median(record.graph_us, axis=0)
        result.graphs = GraphTimes(sampled_steps=len(record.graph_us), eager_us=float(eager), graph_us=float(graph))
    if record.device_idle:
        result.summary.device_idle_share = float(np.mean(record.device_idle))
    rows = np.array([step.assignments for step in record.steps]) / layers
    active, few = np.array(record.active) / layers, np.array(record.few) / layers
    for note in (
        assessment.over_the_ceiling_note(result.summary.limits),
        assessment.full_batch_note(rows, active, few, times["experts"]) if "experts" in times else None,
    ):
        if note is not None:
            result.notes.append(note)


def _shares_of_rates(step: StepRecord, limits: Limits) -> tuple[float, float]:
    """The floors of the MoE layers of a step by memory and by arithmetic, over their time."""
    work = [own for leaf, own in step.work.items() if in_layer(leaf)]
    spent_us = sum(us for leaf, us in step.times_us.items() if in_layer(leaf)) or inf
    return sum(map(limits.memory_us, work)) / spent_us, sum(map(limits.compute_us, work)) / spent_us


def beside_the_machine(result: Run, record: RunRecord, limits: Limits, usual: Seen) -> None:
    """Add to the noise of ``result`` what the probes saw around it, beside what is ``usual`` for the machine;
    ``limits`` say which of the machine's rates sets the time of its MoE layers, in the median step: that is the step
    whose time is told and compared."""
    assert result.noise is not None
    shares = [_shares_of_rates(step, limits) for step in record.steps]
    memory, compute = np.median(shares, axis=0).tolist()
    deciding = noise.decides(memory, compute, 1.0)
    result.noise = noise.with_machine(result.noise, noise.around(record.seen, usual, deciding))
    if told := noise.sentence(result.noise):
        result.notes.append(told)


def _truncated_note(record: RunRecord | None) -> list[str]:
    if record is None or not record.truncated:
        return []
    return [f"max_seconds cut this run off after {len(record.steps)} steps (pass {len(record.passes)})."]


def per_layer(record: RunRecord, scaling: Scale) -> dict[str, np.ndarray]:
    """Times [S] in µs of each leaf for one layer: the mean over the executed ones; ``other`` as it is."""
    return {
        leaf: np.array([step.times_us.get(leaf, 0.0) for step in record.steps])
        / (1 if top(leaf) == "other" else scaling.executed_layers)
        for leaf in scaling.counts
    }


def _layer_us(stages: Mapping[str, np.ndarray]) -> np.ndarray:
    """Times [S] of one MoE layer, of those of all ``stages``."""
    return np.sum([times for stage, times in stages.items() if stage in (*LAYER_STAGES, IDLE)], axis=0)


def steps(record: RunRecord, scaling: Scale) -> Steps:
    """The run's step columns."""
    leaves = per_layer(record, scaling)
    stages = with_stages(leaves)
    layer = _layer_us(stages)
    assignments = [step.assignments for step in record.steps]
    several = [step.ranks for step in record.steps if step.ranks is not None]
    one = RankSteps(
        rank=0,
        assignments=assignments,
        rows=[step.rows for step in record.steps],
        stages_us={stage: _rounded(times) for stage, times in stages.items()},
        idle_us=[0.0] * len(record.steps),
        bytes={"local": [step.moved_bytes for step in record.steps]},
    )
    return Steps(
        index=[step.index for step in record.steps],
        prefill_tokens=[step.prefill_tokens for step in record.steps],
        decode_tokens=[step.decode_tokens for step in record.steps],
        step_us=_rounded(step_us(leaves, scaling)),
        layer_us=_rounded(layer),
        assignments=assignments,
        dropped=[step.dropped for step in record.steps],
        ranks=rank_steps(several, scaling.executed_layers) if several else [one],
        start_us=_started(record),
    )


def _started(record: RunRecord) -> list[float] | None:
    starts = [start for one in record.passes if one.start_us is not None for start in one.start_us]
    return _rounded(np.array(starts)) if starts else None


def requests(metrics: Sequence[RequestMetrics]) -> Requests:
    return Requests(
        arrival_ms=[round(m.arrival_ms, 3) for m in metrics],
        ttft_ms=[round(m.ttft_ms, 3) for m in metrics],
        tpot_ms=[None if m.tpot_ms is None else round(m.tpot_ms, 3) for m in metrics],
        itl_ms=[[round(gap, 3) for gap in m.itl_ms] for m in metrics],
        e2e_ms=[round(m.e2e_ms, 3) for m in metrics],
        prompt_tokens=[m.prompt_tokens for m in metrics],
        output_tokens=[m.output_tokens for m in metrics],
        request=[m.request for m in metrics],
        wait_ms=[round(m.wait_ms, 3) for m in metrics],
        preempted_ms=[[round(ms, 3) for ms in m.preempted_ms] for m in metrics],
    )


def summary(record: RunRecord, scaling: Scale, seen: served.Served, spec: Spec) -> Summary:
    """Statistics of a run with at least one step."""
    leaves = per_layer(record, scaling)
    stages = with_stages(leaves)
    total = step_us(leaves, scaling)
    share: dict[str, float] = {}
    for leaf, times in leaves.items():
        share[top(leaf)] = share.get(top(leaf), 0.0) + float((times * scaling.counts[leaf]).sum() / total.sum())
    layer = _layer_us(stages)
    step_time, layer_time = distribution(total), distribution(layer)
    assert step_time is not None
    assert layer_time is not None
    kept = sum(step.assignments for step in record.steps)
    dropped = sum(step.dropped for step in record.steps)
    rows = sum(step.rows for step in record.steps)
    several = [step.ranks for step in record.steps if step.ranks is not None]
    assert record.routed is not None
    load = record.routed.expert_assignments
    return Summary(
        step_us=step_time,
        layer_us=layer_time,
        **served.figures(spec, record.passes, seen),
        stage_share=share,
        stage_us={stage: float(np.median(times)) for stage, times in stages.items()},
        imbalance=imbalance(several) if several else 1.0,
        expert_imbalance=float(np.mean(load.max(axis=1) / load.mean(axis=1).clip(min=1e-9))),
        padding_waste=1 - kept / rows if rows else 0.0,
        drop_rate=dropped / (kept + dropped) if kept + dropped else 0.0,
        idle_share=idle_share(several) if several else 0.0,
        truncated=record.truncated,
    )


def _rounded(times: np.ndarray) -> list[float]:
    """Times to a nanosecond: finer digits are noise and double the file."""
    return np.round(times, 3).tolist()
