"""What the pages read from the database, in a constant number of queries each; `present` makes of it what is shown."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.utils import timezone

from bench_worker import result
from bench_worker.workload.generators import GENERATORS
from webapp.experiments import present
from webapp.experiments.export import steps_of
from webapp.experiments.models import HELD, Experiment, Machine, State

RECENT = 8


def home() -> dict[str, Any]:
    """Running, waiting and recently ended experiments."""
    listed = Experiment.objects.listed()
    waiting = listed.filter(state=State.QUEUED).order_by("queued_at", "id")
    return {
        "running": [(row, present.now(row.progress, timezone.now())) for row in listed.filter(state__in=HELD)],
        "waiting": waiting[:RECENT],
        "num_waiting": waiting.count(),
        "recent": listed.filter(finished_at__isnull=False).order_by("-finished_at")[:RECENT],
    }


def detail(row: Experiment, chosen: str = "") -> dict[str, Any]:
    """Everything on an experiment's page; ``chosen`` is the position of the run whose steps and requests are shown."""
    differs, rest = present.asked(row.document)
    environment = row.result["environment"] if row.result else row.machine.details if row.machine else {}
    context = {
        "experiment": row,
        "differs": differs,
        "rest": rest,
        "varied": list(dict.fromkeys(planned["variant"] for planned in row.plan)),
        "corners": list(dict.fromkeys(planned["condition"] for planned in row.plan)),
        "where": present.where(environment),
        "command": command(row),
        "trace_file": imported_trace(row),
    }
    if row.state == State.DONE:
        return context | _done(row, chosen)
    if row.state == State.QUEUED:
        return context | _queued(row)
    runs = present.seen(row.plan, row.so_far)
    return context | {
        "now": present.now(row.progress, timezone.now()) if row.state in HELD else None,
        "matrix": present.matrix(row.plan, runs) if runs or row.state in HELD else None,
        "bars": present.bars(runs),
    }


def command(row: Experiment) -> str:
    """What measures the same again without this product, next to the downloaded files."""
    traces = " --traces ." if imported_trace(row) else ""
    return f"python -m bench_worker run experiment-{row.pk}.json --out result-{row.pk}.json{traces}"


def imported_trace(row: Experiment) -> str | None:
    """The imported trace that it reads, or None where its trace is built in."""
    name: str = row.document["base"]["workload"]["trace"]
    return None if name in GENERATORS else name


def _done(row: Experiment, chosen: str) -> dict[str, Any]:
    runs = list(row.runs.defer("requests", "expert_assignments", "fit"))
    seen = present.seen(row.plan, ({name: getattr(run, name) for name in present.SEEN} for run in runs))
    context = {
        "runs": list(zip(runs, seen, strict=True)),
        "matrix": present.matrix(row.plan, seen),
        "bars": present.bars(seen),
    }
    timed = [run for run in runs if run.summary is not None]
    if not timed:
        return context
    run = next((run for run in timed if chosen == str(run.position)), timed[0])
    steps = steps_of(run)
    assert steps is not None
    summary, scale = result.Summary.model_validate(run.summary), result.Scale.model_validate(run.scale)
    requests = None if run.requests is None else result.Requests.model_validate(run.requests)
    return context | {
        "timed": timed,
        "chosen": run,
        "summary": summary,
        "timeline": present.timeline(steps, scale),
        "stages": present.stage_rows(summary, scale),
        "latencies": present.latencies(summary),
        "requests": requests and present.first_requests(requests),
        "num_requests": requests and len(requests.e2e_ms),
    }


def _queued(row: Experiment) -> dict[str, Any]:
    before = Q(queued_at__lt=row.queued_at) | Q(queued_at=row.queued_at, pk__lt=row.pk)
    return {
        "ahead": Experiment.objects.filter(before, state=State.QUEUED, pool=row.pool).count(),
        "pool_has_machine": Machine.objects.filter(pool=row.pool).exists(),
    }
