"""Runs to compare, without a database: one variant under one condition with step times of one's choice."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench_worker.result import Summary
from tests.webapp.experiments import make
from webapp.experiments.compare import STEP, Measured
from webapp.experiments.compare_table import Contender, contenders

STEPS = 200
#: Times of a machine that is never quite quiet, in µs.
USUAL = 1000 * np.exp(np.random.default_rng(1).normal(0, 0.02, STEPS))


def measured(
    variant: str = "base", factor: float = 1.0, *, id: int = 1, experiment: int = 1, steps: int = STEPS, **changes: Any
) -> Measured:
    """Its steps take `USUAL` times ``factor``, give or take a thousandth; ``condition``: of the made experiment's plan,
    the first or the second; ``spec``: changes of it by field."""
    place = changes.pop("condition", 0)
    planned = make.experiment(vary=None).runs()[place]
    spec = planned.spec
    for field, value in changes.pop("spec", {}).items():
        group, _, leaf = field.partition(".")
        inner = getattr(spec, group).model_copy(update={leaf: value}) if leaf else value
        spec = spec.model_copy(update={group: inner})
    times = USUAL[:steps] * factor * np.exp(np.random.default_rng(id).normal(0, 0.001, steps))
    usual: dict[str, Any] = {
        "title": "Fusion",
        "position": id,
        "summary": summary(times),
        "layer_scale": 16,
        "interleaved": 2,
        "parts": {STEP: times, "route": 0.1 * times, "experts": 0.9 * times},
        "batches": {
            "index": np.arange(steps),
            "prefill_tokens": np.zeros(steps),
            "decode_tokens": np.ones(steps),
        },
        "environment": make.MACHINE,
        "host": "bench-1",
    }
    return Measured(
        id=id, experiment=experiment, variant=variant, condition=planned.condition, spec=spec, **usual | changes
    )


def summary(times: np.ndarray, **changes: Any) -> Summary:
    made = make.result(make.experiment()).runs[0].summary
    assert made is not None
    return made.model_copy(update={"step_us": make.distribution(times.tolist()), **changes})


def of(*runs: Measured) -> list[Contender]:
    """As contenders that have the names of their variants."""
    return contenders(runs)
