"""What comes down from an experiment's page beside its result file: its tables, and steps as a trace."""

from __future__ import annotations

import json

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from bench_worker import perfetto
from bench_worker.errors import SpecError, not_one_of
from webapp.experiments import export, export_tables
from webapp.experiments.models import Experiment, Kind, State
from webapp.experiments.thinning import Thinned
from webapp.experiments.views import download, refused, visible

#: Steps of a trace where the address names none.
FIRST_STEPS = 50


@require_safe
def tables(request: HttpRequest, pk: int) -> HttpResponse:
    """All numbers of the page as JSON, or with ``?table=NAME`` one table as CSV."""
    row, name = _done(pk), request.GET.get("table", "")
    if name and name not in export_tables.TABLES:
        return refused(f"table: {not_one_of(name, export_tables.TABLES)}")
    found = export_tables.tables(row.plan, list(row.runs.values(*export_tables.READ)))
    if name:
        return download(export_tables.as_csv(name, found[name]), f"{name}-{pk}.csv", "text/csv; charset=utf-8")
    return download(export_tables.as_json(row.title, pk, found), f"tables-{pk}.json")


@require_safe
def trace(request: HttpRequest, pk: int) -> HttpResponse:
    """Steps of a run, ``?run=POSITION&steps=0,5-9``, for Perfetto: the first run that has times, and its first steps,
    where the address names none."""
    timed, position = _done(pk).runs.exclude(summary=None), request.GET.get("run", "")
    if position and not (position.isdecimal() and len(position) < 6):
        return refused(f"run: {position[:40]!r} is not the place of a run; it must be a number from 0 up")
    stored = get_object_or_404(timed, position=int(position)) if position else timed.first()
    if stored is None:
        raise Http404("No run of this experiment has times.")
    try:
        run = export.run_of(stored)
    except Thinned as thinned:
        return refused(str(thinned), 410)
    assert run.steps is not None
    steps = request.GET.get("steps") or f"0-{min(FIRST_STEPS, len(run.steps.index)) - 1}"
    try:
        found = perfetto.trace(run, steps)
    except SpecError as error:
        return refused(str(error))
    return download(json.dumps(found).encode(), f"trace-{pk}-run-{stored.position}.json")


def _done(pk: int) -> Experiment:
    row = visible(pk)
    if row.kind != Kind.EXPERIMENT or row.state != State.DONE:
        raise Http404("This experiment has no numbers.")
    return row
