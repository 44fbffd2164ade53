"""Documents and results for tests: small, valid, and the same every time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from bench_worker import capacity, models
from bench_worker.ceilings import Ceiling, Ceilings
from bench_worker.kernel_report import Row, Table
from bench_worker.parallel.placement import place
from bench_worker.result import (
    Check,
    ClockCheck,
    Distribution,
    Exchange,
    Limit,
    Noise,
    RankSteps,
    Requests,
    Result,
    RoutingOutcome,
    Run,
    Scale,
    Steps,
    Summary,
    TailSteps,
)  # fmt: skip
from bench_worker.spec import Experiment, Library, PlannedRun, Spec

MACHINE = {"name": "test bench", "fingerprint": "abc123", "memory_bytes": 64_000_000_000, "gpus": [], "cores": 2}
STAGES_US = {"route": 30.0, "route.gate": 20.0, "route.select": 10.0, "permute": 10.0, "experts": 300.0,
             "combine": 20.0, "attention": 50.0, "other": 100.0}  # fmt: skip
LIMITS = {
    "experts": Limit(floor_us=270.0, share=0.9, bound="memory", flops_per_s=40e9, intensity=1.1, by_memory=0.9),
    "attention": Limit(floor_us=20.0, share=0.4, bound="overhead", flops_per_s=30e9, intensity=2.0),
    "route": Limit(floor_us=6.0, share=0.2, bound="overhead"),
    "route.gate": Limit(floor_us=5.0, share=0.25, bound="overhead"),
}


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
        check=Check(
            rel_error=0.5 if is_wrong else 0.001,
            tolerance=0.01,
            tokens=16,
            quantization_error=None if planned.spec.kernels.quantization == "none" else 0.2,
        ),
        fit={"measurement": capacity.fit_measurement(planned.spec, 16_000_000_000, tokens_per_sequence=32),
             "deployment": capacity.fit(planned.spec, None)},
        scale=scale,
        notes=["Weights are random."],
        origins={"layer_us": "measured", "step_us": "scaled"},
    )  # fmt: skip
    return found if is_wrong else found.model_copy(update=_measured(scale, place, num_steps))


def _measured(scale: Scale, place: int, num_steps: int) -> dict[str, Any]:
    slower = [1 + place + step % 5 / 10 for step in range(num_steps)]
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
        prompt_tokens=[16, 16], output_tokens=[3, 1], request=[0, 1], wait_ms=[0.0, 0.5], preempted_ms=[[], [1.5, 2.5]],
    )  # fmt: skip
    summary = Summary(
        step_us=distribution(step_us),
        layer_us=distribution(steps.layer_us),
        ttft_ms=distribution(requests.ttft_ms),
        tpot_ms=distribution([1.0]),
        itl_ms=distribution([1.0, 1.0]),
        e2e_ms=distribution(requests.e2e_ms),
        output_tokens_per_s=1000 * num_steps / ms,
        requests_per_s=2000 / ms,
        tails={
            "ttft_ms": TailSteps(request=1, value_ms=3.0, steps=[0], reason="its own prompt of 16 tokens"),
            "tpot_ms": TailSteps(request=0, value_ms=1.0, steps=[1, 2], reason="prefill of request 1 in the way"),
        },
        stage_share=share,
        stage_us={stage: sorted(times)[num_steps // 2] for stage, times in stages.items()},
        imbalance=1.0,
        expert_imbalance=2.5,
        padding_waste=0.0,
        drop_rate=0.0,
        idle_share=0.0,
        truncated=False,
        limits=LIMITS,
    )
    return {
        "noise": Noise(
            label="drifting" if place == 1 else "steady", samples=num_steps, spread=0.021, drift=0.08 * place
        ),
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


def on_ranks(found: Run, nodes: list[int], **changes: Any) -> Run:
    """``found`` as if measured on as many ranks as there are ``nodes``, TP 2: in step s, the experts of rank r take
    100·(r + 1) µs, and the last rank's s more; it gets r + 1 assignments, and sends 3 kB to itself, 2 kB to rank 0 and
    1 kB to each other."""
    assert found.steps is not None
    num_ranks, num_steps = len(nodes), len(found.steps.index)
    last = num_ranks - 1
    layer_us = [35.0 + 100 * num_ranks + step for step in range(num_steps)]
    sent = [[3000 if to == rank else 2000 if to == 0 else 1000 for to in range(num_ranks)] for rank in range(num_ranks)]

    def bytes_to(rank: int, is_one: Any) -> list[int]:
        return [sum(sent[rank][to] for to in range(num_ranks) if is_one(to))] * num_steps

    ranks = [
        RankSteps(
            rank=rank,
            assignments=[rank + 1] * num_steps,
            rows=[rank + 1] * num_steps,
            stages_us={stage: [10.0] * num_steps for stage in STAGES_US}
            | {"experts": [100.0 * (rank + 1) + step * (rank == last) for step in range(num_steps)]}
            | {"dispatch": [5.0] * num_steps},
            idle_us=[100.0 * (last - rank) + step * (rank < last) for step in range(num_steps)],
            bytes={
                "local": bytes_to(rank, lambda to, own=rank: to == own),
                "intra_node": bytes_to(rank, lambda to, own=rank: to != own and nodes[to] == nodes[own]),
                "inter_node": bytes_to(rank, lambda to, own=rank: nodes[to] != nodes[own]),
            },
        )
        for rank in range(num_ranks)
    ]
    parallel = {"layout": {"tp": 2, "dp": num_ranks // 2, "nodes": len(set(nodes))}, "mode": "virtual"}
    spec = found.spec.model_dump() | {"parallel": parallel | changes.pop("parallel", {})}
    held = place(np.ones((1, 64)), num_ranks, "contiguous", spec["parallel"].get("redundant_experts", 0))
    exchange = {
        "nodes": nodes,
        "physical_to_logical": held.physical_to_logical.tolist(),
        "rank_of_physical": held.rank_of_physical.tolist(),
        "dispatched_bytes": sent,
        "fitted_to": "nothing",
        "network": "modelled",
        "topology": "Nodes of 8 H200",
    }
    return found.model_copy(
        update={
            "spec": Spec.model_validate(spec),
            "steps": found.steps.model_copy(update={"ranks": ranks, "layer_us": layer_us}),
            "exchange": Exchange.model_validate(exchange | changes),
            "origins": found.origins | {"step_us": (exchange | changes)["network"]},
        }
    )


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


#: Times of the experts at one token, and by how much each more takes.
BACKENDS = {"auto": 90.0, "deepspeed": 120.0, "zentorch": 90.0, "padded": 400.0, "loop": 150.0}


def ceiling(value: float, unit: str = "GB/s") -> Ceiling:
    return Ceiling(value=value, unit=unit, kernel="k", median=0.95 * value, lowest=0.8 * value, samples=12)


def ceilings(read: float = 40.0, warnings: list[str] | None = None, day: int = 1, hour: int = 2) -> Ceilings:
    """Those of a small CPU; ``read`` in GB/s, measured in March 2026."""
    return Ceilings(
        device="cpu", threads=2, read=ceiling(read), copy_rate=ceiling(0.9 * read),
        matrix={"float32": ceiling(120.0, "GFLOP/s"), "bfloat16": ceiling(900.0, "GFLOP/s")}, cache_bytes=32 << 20,
        measured_at=datetime(2026, 3, day, hour, tzinfo=UTC), seconds=6.0, warnings=warnings or [],
    )  # fmt: skip


def table(
    model: str = "olmoe-1b-7b", tokens: list[int] | None = None, dtype: str = "bfloat16", slower: float = 1.0,
    day: int = 1, **environment: Any,
) -> Table:  # fmt: skip
    """What a worker would write for ``kernels``: every backend times ``slower``, deepspeed_layer not available."""
    rows = []
    for count in tokens or [1, 64]:
        floor = 80.0 * count**0.5
        times = {name: us * count**0.5 * slower for name, us in BACKENDS.items()}
        for name, us in times.items():
            rows.append(
                Row(
                    backend=name, fusion="whole" if name in ("auto", "zentorch") else "gate_up", tokens=count,
                    experts_us=us, layer_us=1.05 * us, floor_us=floor, share=floor / us, bus=40.0 / slower,
                    bound="memory" if floor / us > 0.5 else "overhead", ratio=us / min(times.values()),
                    rel_error=0.003, padding_waste=0.75 if name == "padded" else 0.0, samples=15,
                    chosen="zentorch" if name == "auto" else None, available=True,
                )
            )  # fmt: skip
        rows.append(
            Row(backend="deepspeed_layer", fusion=None, tokens=count, available=False, reason=f"{model} is not for it")
        )
    measured = ceilings(40.0 / slower, day=day)
    return Table(
        model=model, dtype=dtype, load="uniform", environment=MACHINE | {"flags": []} | environment,
        ceilings={"2": measured}, meanwhile=measured, rows=rows,
    )  # fmt: skip


def backends(*away: str) -> dict[str, dict[str, str | None]]:
    """What a machine reports of its expert backends, where those called ``away`` are not installed."""
    names = ("auto", "deepspeed", "zentorch", "padded", "loop", "deepspeed_layer")
    whole = "kernels.fusion: 'whole' is not something {!r} can do; use none or gate_up"
    found: dict[str, dict[str, str | None]] = {}
    for name in names:
        found[name] = dict.fromkeys(("none", "gate_up", "whole"))
        if name not in ("auto", "zentorch"):
            found[name]["whole"] = whole.format(name)
        if name in away:
            found[name] = dict.fromkeys(found[name], f"kernels.experts: {name!r} can't run: it is not installed here")
    return found
