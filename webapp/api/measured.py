"""What was measured, over the API: runs, and the files that come down from an experiment's page."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from pydantic import BaseModel, Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from webapp.api.answers import Page, page
from webapp.api.experiments import filtered
from webapp.api.problems import Refused, problem
from webapp.api.schema import CURSOR, PAGE_SIZE, problems
from webapp.experiments import export, export_tables, export_views
from webapp.experiments.browse import RunFilter
from webapp.experiments.models import Experiment, Kind, Run, State
from webapp.experiments.views import visible
from webapp.numbers import number_in

JSON = "application/json"


class RunSummary(BaseModel):
    """One variant under one condition, without its arrays over steps; those are in the result."""

    id: int
    experiment: int
    variant: str
    condition: str
    status: str
    summary: dict[str, Any] | None = Field(description="As in the result: percentiles and shares.")
    origins: dict[str, Any]
    notes: list[Any]

    @classmethod
    def of(cls, run: Run) -> RunSummary:
        values = {name: getattr(run, name) for name in cls.model_fields.keys() - {"experiment"}}
        return cls(**values, experiment=run.experiment_id)


class RunPage(Page):
    results: list[RunSummary]


class RunList(APIView):
    @extend_schema(
        operation_id="runs_list",
        parameters=[
            CURSOR,
            PAGE_SIZE,
            OpenApiParameter("experiment", int, description="Of this experiment alone."),
            OpenApiParameter("q", str, description="Words, all of them, in title, variant or corner."),
            OpenApiParameter("model", str, description="A preset."),
            OpenApiParameter("strategy", str, description="Of routing."),
            OpenApiParameter("machine", str, description="The name of one that measured."),
            OpenApiParameter("author", str, description="A member's name."),
            OpenApiParameter("tag", str, description="Of its experiment."),
        ],
        responses={200: RunPage, **problems(404, 422)},
    )
    def get(self, request: Request) -> Response:
        """Runs with their summaries, newest first, that pass every filter."""
        rows = Run.objects.filter(experiment__deleted_at=None).only(
            "experiment_id", "variant", "condition", "status", "summary", "origins", "notes"
        )
        wanted = request.query_params.get("experiment")
        if wanted is not None:
            if (number := number_in(wanted)) is None:
                raise Refused("experiment", f"{wanted!r} is not the number of an experiment")
            rows = rows.filter(experiment=number)
        return page(request, self, filtered(RunFilter(request.query_params, queryset=rows)), RunSummary.of)


class RunOne(APIView):
    @extend_schema(
        operation_id="runs_get",
        responses={
            200: OpenApiResponse(OpenApiTypes.OBJECT, description="As in the result file."),
            **problems(404, 409),
        },
    )
    def get(self, request: Request, pk: int) -> HttpResponse:
        """One run, with every step and every request."""
        rows = Run.objects.filter(experiment__deleted_at=None).prefetch_related("series")
        run = export.run_of(get_object_or_404(rows, pk=pk))
        return HttpResponse(run.model_dump_json(by_alias=True), content_type=JSON)


class ExperimentResult(APIView):
    @extend_schema(
        operation_id="experiments_result",
        responses={
            200: OpenApiResponse(OpenApiTypes.OBJECT, description="The result file, as the worker wrote it."),
            **problems(404, 409),
        },
    )
    def get(self, request: Request, pk: int) -> HttpResponse:
        """Everything that was measured, once the experiment is done."""
        row = visible(pk)
        measured = export.result_of(row)
        if measured is None:
            return _not_done(row)
        return HttpResponse(export.as_json(measured), content_type=JSON)


class ExperimentTables(APIView):
    @extend_schema(
        operation_id="experiments_tables",
        parameters=[OpenApiParameter("table", str, enum=list(export_tables.TABLES), description="As CSV, this alone.")],
        responses={
            (200, JSON): OpenApiResponse(OpenApiTypes.OBJECT, description="All tables, in rows."),
            (200, "text/csv"): OpenApiResponse(OpenApiTypes.STR, description="One table."),
            **problems(404, 409, 422),
        },
    )
    def get(self, request: Request, pk: int) -> HttpResponse:
        """The numbers of the experiment's page as flat tables, with units in the names of columns."""
        row, name = visible(pk), request.query_params.get("table", "")
        if not _has_numbers(row):
            return _not_done(row)
        data = export_views.tables_of(row, name)
        return HttpResponse(data, content_type="text/csv; charset=utf-8" if name else JSON)


class ExperimentTrace(APIView):
    @extend_schema(
        operation_id="experiments_trace",
        parameters=[
            OpenApiParameter("run", int, description="Its place in the result; without it, the first that has times."),
            OpenApiParameter("steps", str, description="As in `0,5-9`; without it, the first ones."),
        ],
        responses={
            200: OpenApiResponse(OpenApiTypes.OBJECT, description="Trace events, for Perfetto."),
            **problems(404, 409, 422),
        },
    )
    def get(self, request: Request, pk: int) -> HttpResponse:
        """Steps of a run, stage by stage, as a trace."""
        row, query = visible(pk), request.query_params
        if not _has_numbers(row):
            return _not_done(row)
        _, data = export_views.trace_of(row, query.get("run", ""), query.get("steps", ""))
        return HttpResponse(data, content_type=JSON)


def _has_numbers(row: Experiment) -> bool:
    if row.kind != Kind.EXPERIMENT:
        raise Http404("A table of kernels has its result alone.")
    return row.state == State.DONE


def _not_done(row: Experiment) -> Response:
    return problem(409, f"Experiment {row.pk} is {row.state}; only what is done has a result.")
