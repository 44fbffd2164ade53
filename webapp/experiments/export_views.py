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
from webapp.numbers import number_in

#: Steps of a trace where the address names none.
FIRST_STEPS = 50


@require_safe
def tables(request: HttpRequest, pk: int) -> HttpResponse:
    """All numbers of the page as JSON, or with ``?table=NAME`` one table as CSV."""
    row, name = _done(pk), request.GET.get("table", "")
    try:
        data = tables_of(row, name)
    except SpecError as error:
        return refused(str(error))
    if name:
        return download(data, f"{name}-{pk}.csv", "text/csv; charset=utf-8")
    return download(data, f"tables-{pk}.json")


@require_safe
def trace(request: HttpRequest, pk: int) -> HttpResponse:
    """Steps of a run, ``?run=POSITION&steps=0,5-9``, for Perfetto: the first run that has times, and its first steps,
    where the address names none."""
    try:
        position, data = trace_of(_done(pk), request.GET.get("run", ""), request.GET.get("steps", ""))
    except SpecError as error:
        return refused(str(error))
    except Thinned as thinned:
        return refused(str(thinned), 410)
    return download(data, f"trace-{pk}-run-{position}.json")


def tables_of(row: Experiment, name: str) -> bytes:
    """All tables of what is done as JSON; the one called ``name`` as CSV. Raises `SpecError` where there is none."""
    if name and name not in export_tables.TABLES:
        raise SpecError("table", name, not_one_of(name, export_tables.TABLES))
    found = export_tables.tables(row.plan, list(row.runs.values(*export_tables.READ)))
    return export_tables.as_csv(name, found[name]) if name else export_tables.as_json(row.title, row.pk, found)


def trace_of(row: Experiment, position: str, steps: str) -> tuple[int, bytes]:
    """The chosen steps of the run at ``position``, and that position; where these are empty, of the first run that has
    times, and its first steps. Raises `SpecError` for a choice that makes no sense, `Thinned`, and `Http404`."""
    timed = row.runs.exclude(summary=None)
    number = number_in(position)
    if position and number is None:
        message = f"{position[:40]!r} is not the place of a run; it must be a number from 0 up"
        raise SpecError("run", position, message)
    stored = timed.first() if number is None else get_object_or_404(timed, position=number)
    if stored is None:
        raise Http404("No run of this experiment has times.")
    run = export.run_of(stored)
    assert run.steps is not None
    chosen = steps or f"0-{min(FIRST_STEPS, len(run.steps.index)) - 1}"
    return stored.position, json.dumps(perfetto.trace(run, chosen)).encode()


def _done(pk: int) -> Experiment:
    row = visible(pk)
    if row.kind != Kind.EXPERIMENT or row.state != State.DONE:
        raise Http404("This experiment has no numbers.")
    return row
