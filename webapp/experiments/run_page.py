"""The page of one run: every request over time, and every step. It reads that run's data and no other's."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from django.http import Http404, QueryDict

from bench_worker import result
from webapp.experiments import export, routing, thinning
from webapp.experiments.models import Experiment, Run
from webapp.experiments.rank_page import first_rank
from webapp.experiments.run_tables import READ, over_time, request_columns, step_columns
from webapp.experiments.tails import Tail, tails
from webapp.ui.tables import table


def context(row: Experiment, position: int, query: QueryDict) -> dict[str, Any]:
    """``query``: ``sort`` and ``page`` of the steps, ``by`` and ``part`` of the requests, and the latency ``behind``
    whose p95 the steps are shown. Raises `Http404` where there is no such run, or it was not timed."""
    run = (
        row.runs.filter(position=position)
        .only("experiment", "position", "variant", "condition", "summary", "scale")
        .prefetch_related(first_rank())
        .first()
    )
    if run is None or run.summary is None:
        raise Http404("This experiment has no such run with times.")
    summary = result.Summary.model_validate(run.summary)
    return {
        "experiment": row,
        "run": run,
        "summary": summary,
        "others": row.runs.exclude(summary=None).values("position", "variant", "condition").order_by("position"),
        "non_causal": routing.non_causal(row.document),
        "thinned": thinning.in_words(row),
        **({} if row.thinned_at else _steps(run, summary, query)),
        **_requests(row, position, query),
    }


def _steps(run: Run, summary: result.Summary, query: QueryDict) -> dict[str, Any]:
    steps, scale = export.steps_of(run), result.Scale.model_validate(run.scale)
    assert steps is not None
    behind = tails(summary)
    chosen = next((tail for tail in behind if tail.metric == query.get("behind")), None)
    shown = table(step_columns(steps, scale), query, ("sort", "page"), chosen and chosen.found.steps)
    marks: defaultdict[int, list[Tail]] = defaultdict(list)
    for tail in behind:
        for place in tail.found.steps:
            marks[place].append(tail)
    return {
        "steps": shown,
        "step_rows": [(cells, marks[place]) for cells, place in zip(shown.rows, shown.places, strict=True)],
        "num_steps": len(steps.index),
        "tails": behind,
        "behind": chosen,
    }


def _requests(row: Experiment, position: int, query: QueryDict) -> dict[str, Any]:
    read = row.runs.filter(position=position).values(*(f"requests__{name}" for name in READ)).get()
    requests = {name: read[f"requests__{name}"] for name in READ}
    if not requests["e2e_ms"]:
        return {"requests": None}
    shown = table(request_columns(requests), query, ("by", "part"))
    return {
        "requests": shown,
        "over_time": over_time(requests, shown.places),
        "knows_waiting": requests["wait_ms"] is not None,
    }
