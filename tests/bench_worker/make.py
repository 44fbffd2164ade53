"""A whole result of one run with one step, to change in one place at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench_worker.capacity import fit, fit_measurement
from bench_worker.result import (
    LAYER_STAGES,
    Check,
    Distribution,
    Limit,
    RankSteps,
    Requests,
    Result,
    Run,
    Scale,
    Steps,
    Summary,
)
from bench_worker.spec import Experiment

EXPERIMENT = Experiment.model_validate({"base": {"model": "olmoe-1b-7b"}})


def made_run(**changes: Any) -> Run:
    one = Distribution(p50=1.0, p90=1.0, p95=1.0, p99=1.0, mean=1.0, samples=1)
    stages = {"route": [1.5], "route.gate": [0.5], "route.select": [1.0]}
    rank = RankSteps(rank=0, assignments=[8], rows=[8], stages_us=stages, idle_us=[0.0], bytes={"local": [64]})
    values = {
        "variant": "base",
        "condition": "1×8",
        "spec": EXPERIMENT.base,
        "status": "ok",
        "check": Check(rel_error=0.001, tolerance=0.01, tokens=8),
        "fit": {
            "deployment": fit(EXPERIMENT.base, None),
            "measurement": fit_measurement(EXPERIMENT.base, 10**10, tokens_per_sequence=12),
        },
        "scale": Scale(executed_layers=1, counts={"route.gate": 16, "route.select": 16}),
        "steps": Steps(
            index=[0], prefill_tokens=[1], decode_tokens=[0], step_us=[24.0], layer_us=[1.5], assignments=[8],
            dropped=[0], ranks=[rank],
        ),
        "requests": Requests(
            arrival_ms=[0.0], ttft_ms=[0.024], tpot_ms=[None], itl_ms=[[]], e2e_ms=[0.024], prompt_tokens=[1],
            output_tokens=[1],
        ),
        "summary": Summary(
            step_us=one, layer_us=one, ttft_ms=one, tpot_ms=None, itl_ms=None, e2e_ms=one, output_tokens_per_s=41.7,
            stage_share={"route": 1.0}, stage_us={"route": 1.5}, imbalance=1.0, expert_imbalance=2.0,
            padding_waste=0.0, drop_rate=0.0, idle_share=0.0, truncated=False,
        ),
        "origins": {"step_us": "scaled"},
    }  # fmt: skip
    return Run(**(values | changes))


def made_result(*runs: Run) -> Result:
    return Result(experiment=EXPERIMENT.document(), environment={"name": "here"}, runs=list(runs) or [made_run()])


def timed_run(
    *ranks: Mapping[str, Sequence[float] | float],
    steps: int = 40,
    counts: Mapping[str, int] | None = None,
    limits: Mapping[str, Limit] | None = None,
    **changes: Any,
) -> Run:
    """A run whose ``ranks`` took these µs in each leaf stage of a layer, ``idle`` among them: a number, or one a step.
    ``counts``: how often the model holds a leaf; once, where it isn't told."""
    leaves = [leaf for leaf in ranks[0] if leaf != "idle"]
    scale = Scale(executed_layers=1, counts={leaf: (counts or {}).get(leaf, 1) for leaf in leaves})
    columns = [{leaf: np.broadcast_to(us, steps).tolist() for leaf, us in rank.items()} for rank in ranks]
    whole, layer = np.zeros(steps), np.zeros(steps)
    for leaf in leaves:
        whole += np.array(columns[0][leaf]) * scale.counts[leaf]
        layer += np.array(columns[0][leaf]) * (leaf.partition(".")[0] in LAYER_STAGES)
    zeros = [0] * steps
    plain = made_run()
    assert plain.summary is not None
    values = {
        "scale": scale,
        "steps": Steps(
            index=list(range(steps)), prefill_tokens=zeros, decode_tokens=[1] * steps, step_us=whole.tolist(),
            layer_us=layer.tolist(), assignments=zeros, dropped=zeros,
            ranks=[
                RankSteps(
                    rank=place, assignments=zeros, rows=zeros, idle_us=own.pop("idle", [0.0] * steps), stages_us=own,
                    bytes={},
                )
                for place, own in enumerate(columns)
            ],
        ),
        "requests": None,
        "summary": plain.summary.model_copy(update={"limits": limits or {}}),
    }  # fmt: skip
    return made_run(**(values | changes))
