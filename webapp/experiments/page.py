"""What the page of an experiment reads from the database, in a constant number of queries; `present` makes of it what
is shown."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

from django.db.models import Q, prefetch_related_objects
from django.utils import timezone

from bench_worker import result
from bench_worker.strategies import NON_CAUSAL
from bench_worker.workload.generators import GENERATORS
from webapp.experiments import (
    compare_page,
    export,
    fingerprints,
    kernel_page,
    kernels,
    latency,
    layout_drawing,
    present,
    queue,
    rank_page,
    routing,
    sweep,
    thinning,
    verdicts,
)  # fmt: skip
from webapp.experiments.models import HELD, Experiment, Kind, Machine, Run, State
from webapp.ui import heat


def stamp(row: Experiment) -> str:
    """What a page of the experiment shows below its head: the same for as long as nothing there changes."""
    return f"{row.state}-{row.attempt}-{len(row.so_far)}"


def head(row: Experiment) -> dict[str, Any]:
    """What changes from second to second until the experiment ends: how far it is, or who is before it."""
    now = timezone.now()
    changing = {
        "experiment": row,
        "stamp": stamp(row),
        "now": present.now(row.progress, now) if row.state in HELD else None,
        "late": queue.is_late(row, now),
    }
    return changing | (_queued(row) if row.state == State.QUEUED else {})


class Shown(NamedTuple):
    """What of an experiment its page shows, as the address names it, known or not: the position of the ``run`` whose
    steps and requests, the ``corner`` whose latencies and routing, the latency ``behind`` whose p95 the slow steps, the
    latency ``against`` which throughput is drawn, the ``metric`` of the heat map, the number of the ``step`` whose
    ranks, and that of a run of the variant that is the ``base`` of comparison."""

    run: str = ""
    corner: str = ""
    behind: str = ""
    against: str = ""
    metric: str = ""
    step: str = ""
    base: str = ""


def detail(row: Experiment, shown: Shown) -> dict[str, Any]:
    """Everything on an experiment's page."""
    if row.kind == Kind.KERNELS:
        return table(row)
    differs, rest = present.asked(row.document)
    non_causal = routing.non_causal(row.document)
    varied = list(dict.fromkeys(planned["variant"] for planned in row.plan))
    corners = list(dict.fromkeys(planned["condition"] for planned in row.plan))
    context = head(row) | {
        "differs": differs,
        "rest": rest,
        "varied": varied,
        "corners": corners,
        "where": _where(row),
        "file": export.experiment_json(row).decode(),
        "command": command(row),
        "trace_file": imported_trace(row),
        "recordings": recordings(row),
        "non_causal": non_causal,
        "non_causal_why": NON_CAUSAL,
    }
    if row.state == State.DONE:
        compared = _thinned(row) if row.thinned_at else compare_page.of_experiment(row, varied, shown.base)
        context |= compared | _done(row, shown, non_causal, compared["baseline"])
        return context | _at_corner(row, varied, corners, shown.corner)
    context["layout"] = layout_drawing.asked(row.document)
    if row.state == State.QUEUED:
        return context
    runs = present.seen(row.plan, row.so_far)
    return context | {
        "matrix": present.matrix(row.plan, runs) if runs or row.state in HELD else None,
        "bars": present.bars(runs, non_causal),
        "sweep": sweep.section(row.document, row.plan, runs, shown.against, shown.metric),
    }


def _thinned(row: Experiment) -> dict[str, Any]:
    """In place of a comparison, which takes the variants' steps: their medians."""
    runs = list(row.runs.values(*present.SEEN))
    timed = (run["variant"] for run in runs if run["summary"] is not None)
    return {
        "thinned": thinning.in_words(row),
        "matrix": present.matrix(row.plan, present.seen(row.plan, runs)),
        "baseline": next(timed, ""),
    }


def table(row: Experiment) -> dict[str, Any]:
    """Everything on the page of a table of expert backends."""
    return head(row) | {
        "where": _where(row),
        "flags": _environment(row).get("flags", []),
        **kernel_page.of_row(row),
    }


def command(row: Experiment) -> str:
    """What measures the same again without this product, next to the downloaded files."""
    library = f"{' --traces .' if imported_trace(row) else ''}{' --recordings .' if recordings(row) else ''}"
    return f"python -m bench_worker run experiment-{row.pk}.json --out result-{row.pk}.json{library}"


def imported_trace(row: Experiment) -> str | None:
    """The imported trace that it reads, or None where its trace is built in."""
    name: str = row.document["base"]["workload"]["trace"]
    return None if name in GENERATORS else name


def recordings(row: Experiment) -> list[str]:
    """The recordings that it replays, as base or as a value that varies."""
    asked, vary = [row.document["base"]["load"]["recording"]], row.document["vary"]
    if vary and vary["field"] == "load.recording":
        asked += vary["values"]
    elif vary and vary["field"] == "load":
        asked += [value.get("recording") for value in vary["values"]]
    return sorted({name for name in asked if name is not None})


def _done(row: Experiment, shown: Shown, non_causal: Container[str], baseline: str) -> dict[str, Any]:
    runs = list(row.runs.defer("requests", "expert_assignments", "routing", "fit", "exchange"))
    seen = present.seen(row.plan, ({name: getattr(run, name) for name in present.SEEN} for run in runs))
    environment = _environment(row)
    context = {
        "flags": environment.get("flags", []),
        "kernels": kernels.section([{name: getattr(run, name) for name in kernels.READ} for run in runs], environment),
        "runs": list(zip(runs, seen, strict=True)),
        "bars": present.bars(seen, non_causal, baseline),
        "costs": verdicts.COSTS,
        "verdict": verdicts.section(row.result or {}, [(run.variant, run.condition) for run in runs]),
        "sweep": sweep.section(row.document, row.plan, seen, shown.against, shown.metric),
    }
    timed = [run for run in runs if run.summary is not None]
    if not timed:
        return context
    run = next((run for run in timed if shown.run == str(run.position)), timed[0])
    summary, scale = result.Summary.model_validate(run.summary), result.Scale.model_validate(run.scale)
    requests = None if run.requests is None else result.Requests.model_validate(run.requests)
    return context | {
        "chosen": run,
        "same_corner": [other for other in timed if other.condition == run.condition],
        "same_variant": [other for other in timed if other.variant == run.variant],
        "summary": summary,
        "stages": present.stage_rows(summary, scale),
        "floors": kernels.floors(summary),
        "latencies": present.latencies(summary),
        "requests": requests and present.first_requests(requests),
        "num_requests": requests and len(requests.e2e_ms),
        **({} if row.thinned_at else _steps(run, summary, scale, shown)),
    }


def _steps(run: Run, summary: result.Summary, scale: result.Scale, shown: Shown) -> dict[str, Any]:
    """What of a run takes its steps."""
    prefetch_related_objects([run], rank_page.first_rank())
    steps = export.steps_of(run)
    assert steps is not None
    return {
        "timeline": present.timeline(steps, scale),
        "behind": latency.behind(summary, steps, scale, shown.behind),
        "ranks": rank_page.of_run(run, summary, steps, shown.step),
    }


def _at_corner(row: Experiment, variants: list[str], corners: list[str], corner: str) -> dict[str, Any]:
    """What users feel and how tokens were routed: of all variants at ``corner``, or at the last one, the busiest where
    experimenters go up; of a single variant, at all corners."""
    chosen, by_corner = corner if corner in corners else corners[-1], len(variants) == 1
    runs = row.runs.all() if by_corner else row.runs.filter(condition=chosen)
    read = list(runs.values(*dict.fromkeys((*latency.READ, *routing.READ))))
    return {
        "felt": latency.section(read, corners, chosen, by_corner=by_corner),
        "routing": routing.section(read, corners, chosen, by_corner=by_corner),
        "heat_levels": heat.LEVELS,
    }


def _environment(row: Experiment) -> dict[str, Any]:
    """The machine's, as the result tells it; empty before there is one."""
    return row.result["environment"] if row.result else {}


def _where(row: Experiment) -> dict[str, str]:
    """What the machine is that measures it or did, and how it was then."""
    details = _environment(row) or (row.machine.details if row.machine else {})
    labels = {f"Label {key}": value for key, value in row.labels.items()}
    return fingerprints.facts(details) | fingerprints.conditions(details) | labels


def _queued(row: Experiment) -> dict[str, Any]:
    before = Q(queued_at__lt=row.queued_at) | Q(queued_at=row.queued_at, pk__lt=row.pk)
    return {
        "ahead": Experiment.objects.filter(before, state=State.QUEUED, pool=row.pool).count(),
        "pool_has_machine": Machine.objects.filter(pool=row.pool).exists(),
    }
