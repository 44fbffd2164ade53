"""Documents and results for tests: small, valid, and the same every time."""

from __future__ import annotations

from typing import Any

from bench_worker import capacity, models
from bench_worker.result import (
    Check,
    ClockCheck,
    Distribution,
    RankSteps,
    Requests,
    Result,
    RoutingOutcome,
    Run,
    Scale,
    Steps,
    Summary,
)  # fmt: skip
from bench_worker.spec import Experiment, Library, PlannedRun

MACHINE = {"name": "test bench", "fingerprint": "abc123", "memory_bytes": 64_000_000_000, "gpus": [], "cores": 2}
STAGES_US = {"route": 30.0, "route.gate": 20.0, "route.select": 10.0, "permute": 10.0, "experts": 300.0,
             "combine": 20.0, "attention": 50.0, "other": 100.0}  # fmt: skip


def document(**changes: Any) -> dict[str, Any]:
    """A two-variant, two-corner experiment on one olmoe layer."""
    return {
        "schema": 1,
        "title": "Fusion",
        "base": {"model": "olmoe-1b-7b", "workload": {"requests": 4, "output_tokens": 4}},
        "vary": {"field": "kernels.fusion", "values": ["gate_up", "none"]},
        "conditions": [{"concurrency": 1, "prompt_tokens": 16}, {"concurrency": 4, "prompt_tokens": 64}],
    } | changes


def experiment(
    traces: frozenset[str] = frozenset(), recordings: frozenset[str] = frozenset(), **changes: Any
) -> Experiment:
    return Experiment.model_validate(document(**changes), context=Library(traces, recordings))


def result(asked: Experiment, num_steps: int = 5, wrong: frozenset[str] = frozenset()) -> Result:
    """What a worker would write: later runs are slower; variants in ``wrong`` give a wrong result."""
    runs = [run(planned, place, num_steps, planned.variant in wrong) for place, planned in enumerate(asked.runs())]
    return Result(schema=1, experiment=asked.document(), environment=MACHINE, runs=runs)


def run(planned: PlannedRun, place: int, num_steps: int, is_wrong: bool) -> Run:
    model = models.load(planned.spec.model)
    layers = dict.fromkeys(("route.gate", "route.select", "permute", "experts", "combine"), model.moe_layers)
    scale = Scale(executed_layers=planned.spec.layers, counts=layers | {"attention": model.layers, "other": 1})
    found = Run(
        variant=planned.variant,
        condition=planned.condition,
        spec=planned.spec,
        status="wrong result" if is_wrong else "ok",
        check=Check(rel_error=0.5 if is_wrong else 0.001, tolerance=0.01, tokens=16),
        fit={"measurement": capacity.fit_measurement(planned.spec, 16_000_000_000, tokens_per_sequence=32),
             "deployment": capacity.fit(planned.spec, None)},
        scale=scale,
        notes=["Weights are random."],
        origins={"layer_us": "measured", "step_us": "scaled"},
    )  # fmt: skip
    return found if is_wrong else found.model_copy(update=_measured(scale, place, num_steps))


def _measured(scale: Scale, place: int, num_steps: int) -> dict[str, Any]:
    slower = [1 + place + step / 10 for step in range(num_steps)]
    stages = {stage: [us * factor for factor in slower] for stage, us in STAGES_US.items()}
    step_us = [sum(scale.counts[leaf] * stages[leaf][i] for leaf in scale.counts) for i in range(num_steps)]
    total = sum(step_us)
    share: dict[str, float] = {}
    for leaf, count in scale.counts.items():
        stage = leaf.partition(".")[0]
        share[stage] = share.get(stage, 0.0) + count * sum(stages[leaf]) / total
    rank = RankSteps(
        rank=0,
        assignments=[8] * num_steps,
        rows=[8] * num_steps,
        stages_us=stages,
        idle_us=[0.0] * num_steps,
        bytes={"local": [1_000_000] * num_steps},
    )
    steps = Steps(
        index=list(range(num_steps)),
        prefill_tokens=[16, *[0] * (num_steps - 1)],
        decode_tokens=[0, *[1] * (num_steps - 1)],
        step_us=step_us,
        layer_us=[360 * factor for factor in slower],
        assignments=[8] * num_steps,
        dropped=[0] * num_steps,
        ranks=[rank],
    )
    ms = sum(step_us) / 1000
    requests = Requests(
        arrival_ms=[0.0, 1.5], ttft_ms=[2.0, 3.0], tpot_ms=[1.0, None], itl_ms=[[1.0, 1.0], []], e2e_ms=[4.0, 3.0],
        prompt_tokens=[16, 16], output_tokens=[3, 1],
    )  # fmt: skip
    summary = Summary(
        step_us=distribution(step_us),
        layer_us=distribution(steps.layer_us),
        ttft_ms=distribution(requests.ttft_ms),
        tpot_ms=distribution([1.0]),
        itl_ms=distribution([1.0, 1.0]),
        e2e_ms=distribution(requests.e2e_ms),
        output_tokens_per_s=1000 * num_steps / ms,
        stage_share=share,
        stage_us={stage: sorted(times)[num_steps // 2] for stage, times in stages.items()},
        imbalance=1.0,
        expert_imbalance=2.5,
        padding_waste=0.0,
        drop_rate=0.0,
        idle_share=0.0,
        truncated=False,
    )
    return {
        "clock": ClockCheck(sampled_steps=2, sum_over_whole=0.99),
        "steps": steps,
        "requests": requests,
        "summary": summary,
        "expert_assignments": [[5, 3, *[0] * 62]],
        "routing": routing(),
    }


def routing(**changes: Any) -> RoutingOutcome:
    """Five tokens in five steps: two get one expert, three get two; expert 0 has five of them, expert 1 three."""
    outcome = RoutingOutcome(
        assignments=8, dropped=0, experts_per_token=[0, 2, 3], rows_per_expert=[316, 1, 2, 1],
        expert_assignments_over_time=[[5, 0, *[0] * 62], [0, 3, *[0] * 62]], steps_per_group=3, expert_overlap=0.25,
        causal=True,
    )  # fmt: skip
    return outcome.model_copy(update=changes)


def distribution(values: list[float]) -> Distribution:
    """Percentiles are not the point here: the middle value stands for each."""
    middle = sorted(values)[len(values) // 2]
    return Distribution(
        p50=middle,
        p90=max(values),
        p95=max(values),
        p99=max(values),
        mean=sum(values) / len(values),
        samples=len(values),
    )
