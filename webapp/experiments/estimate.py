"""How long an experiment will take, from finished ones like it; nothing where there are none."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from statistics import median

from bench_worker import spec
from webapp.experiments.models import Experiment, State

#: Variables that change where work goes more than how much there is: their values are no part of the likeness.
LIGHT = ("load", "load.profile", "load.skew", "load.recording", "routing", "routing.strategy", "kernels.fusion")
#: Older ones say less about the machine as it is now.
MOST = 20


@dataclass(frozen=True)
class Estimate:
    """Seconds: the median, the least and the most of ``count`` experiments on ``machine``, scaled to as many runs."""

    seconds: float
    least: float
    most: float
    count: int
    machine: str


def likeness(experiment: spec.Experiment) -> str:
    """A short hash, the same for experiments whose runs take about as long: the same base (but for its seed), corners
    and measure, and the same values of the variable unless it is a light one."""
    document = experiment.document()
    vary = document["vary"]
    del document["base"]["workload"]["seed"]
    alike = {
        "base": document["base"],
        "conditions": document["conditions"],
        "measure": document["measure"],
        "vary": None if vary is None or vary["field"] in LIGHT else vary,
    }
    return hashlib.sha256(json.dumps(alike, sort_keys=True).encode()).hexdigest()[:16]


def estimate(experiment: spec.Experiment, pool: str) -> Estimate | None:
    """From the last ones like it that ended well in ``pool``, on the kind of machine that did so last."""
    like = Experiment.objects.visible().listed().filter(likeness=likeness(experiment), pool=pool, state=State.DONE)
    rows = [row for row in like.order_by("-finished_at")[:MOST] if row.machine]
    return from_rows(rows, len(experiment.runs()))


def from_rows(rows: list[Experiment], num_runs: int) -> Estimate | None:
    """``rows``: finished ones, latest first, as `ExperimentQuerySet.listed` gives them."""
    if not rows:
        return None
    assert rows[0].machine
    name = rows[0].machine.name
    on_it = [row for row in rows if row.machine and row.machine.name == name]
    seconds = [_seconds(row) / row.num_runs * num_runs for row in on_it]  # type: ignore[attr-defined]  # annotated
    return Estimate(median(seconds), min(seconds), max(seconds), len(seconds), name)


def _seconds(row: Experiment) -> float:
    assert row.finished_at
    assert row.started_at
    return (row.finished_at - row.started_at).total_seconds()
