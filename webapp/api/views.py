"""The API's views. Each reads, calls what the page calls, and answers with one of `documents`."""

from __future__ import annotations

from django.conf import settings
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from bench_worker import spec
from bench_worker.errors import not_one_of
from webapp.accounts.roles import member
from webapp.api.answers import accepted, asked, one, page
from webapp.api.documents import (
    Description,
    ExperimentDetail,
    ExperimentPage,
    ExperimentState,
    MachinePage,
    MachineState,
    RunPage,
    RunSummary,
)
from webapp.api.once import once
from webapp.api.problems import Refused, problem
from webapp.api.schema import CURSOR, KEY, LABELS, PAGE_SIZE, POOL, problems
from webapp.experiments import deeds, export, labels, machines, memory, queue
from webapp.experiments.forms import DescriptionForm
from webapp.experiments.models import Experiment, Machine, Run, State
from webapp.experiments.views import visible
from webapp.traces.store import traces_library

HEAVY = ("plan", "result", "so_far")


class ExperimentList(APIView):
    @extend_schema(
        operation_id="experiments_list",
        parameters=[CURSOR, PAGE_SIZE, OpenApiParameter("state", str, enum=list(State))],
        responses={200: ExperimentPage, **problems(404, 422)},
    )
    def get(self, request: Request) -> Response:
        """Experiments, newest first."""
        rows = Experiment.objects.visible().select_related("author").defer(*HEAVY, "document", "last_output")
        state = request.query_params.get("state")
        if state is not None:
            if state not in State:
                raise Refused("state", not_one_of(state, State))
            rows = rows.filter(state=state)
        return page(request, self, rows, ExperimentState.of)

    @extend_schema(
        operation_id="experiments_create",
        parameters=[POOL, LABELS, KEY],
        request=spec.Experiment,
        responses={
            201: OpenApiResponse(ExperimentDetail, description="Queued."),
            200: OpenApiResponse(ExperimentDetail, description="Had been queued by an earlier request with this key."),
            **problems(422),
        },
    )
    def post(self, request: Request) -> Response:
        """Queue an experiment file, schema 1."""
        pool = request.query_params.get("pool", settings.MOESCOPE_POOL)
        if pool not in (known := machines.pools()):
            raise Refused("pool", not_one_of(pool, known))
        given = labels.parse(request.query_params.getlist("label"), "label")

        def make() -> Experiment:
            experiment = spec.parse_experiment(request.body, traces_library())
            memory.check(experiment, pool)
            return queue.enqueue(experiment, author=member(request), pool=pool, labels=given)

        row, is_new = once(request, Experiment, make)
        return _one(row, 201 if is_new else 200)


class ExperimentOne(APIView):
    @extend_schema(operation_id="experiments_read", responses={200: ExperimentDetail, **problems(404)})
    def get(self, request: Request, pk: int) -> Response:
        """One experiment, with what was asked and how far it is."""
        return _one(_visible(pk))

    @extend_schema(
        operation_id="experiments_describe",
        request=Description,
        responses={200: ExperimentDetail, **problems(404, 422)},
    )
    def patch(self, request: Request, pk: int) -> Response:
        """Change title, tags and notes."""
        row = _visible(pk)
        given = asked(request, Description).model_dump(exclude_none=True)
        tags = given.pop("tags", row.tags)
        form = accepted(DescriptionForm({"title": row.title, "notes": row.notes, "tags": ",".join(tags)} | given))
        deeds.describe(member(request), row, **form.cleaned_data)
        return _one(_visible(pk))

    @extend_schema(operation_id="experiments_delete", responses={204: None, **problems(404)})
    def delete(self, request: Request, pk: int) -> Response:
        """Hide it, and cancel what of it still runs. It can be restored for a week."""
        deeds.delete(member(request), _visible(pk))
        return Response(status=204)


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
            return problem(409, f"Experiment {pk} is {row.state}; only what is done has a result.")
        return HttpResponse(export.as_json(measured), content_type="application/json")


class ExperimentCancel(APIView):
    @extend_schema(
        operation_id="experiments_cancel", request=None, responses={200: ExperimentDetail, **problems(404, 409)}
    )
    def post(self, request: Request, pk: int) -> Response:
        """Cancel what waits; ask the worker of what runs to stop."""
        row = _visible(pk)
        if not deeds.cancel(member(request), row):
            row.refresh_from_db(fields=["state"])
            return problem(409, f"Experiment {pk} is {row.state} and can't be canceled any more.")
        return _one(_visible(pk))


class ExperimentRerun(APIView):
    @extend_schema(
        operation_id="experiments_rerun",
        parameters=[KEY],
        request=None,
        responses={201: ExperimentDetail, 200: ExperimentDetail, **problems(404, 422)},
    )
    def post(self, request: Request, pk: int) -> Response:
        """Queue the same document again, as an experiment of its own."""
        row = _visible(pk)
        again, is_new = once(request, Experiment, lambda: deeds.queue_again(member(request), row))
        return _one(again, 201 if is_new else 200)


class ExperimentRestore(APIView):
    @extend_schema(operation_id="experiments_restore", request=None, responses={200: ExperimentDetail, **problems(404)})
    def post(self, request: Request, pk: int) -> Response:
        """Undo a deletion. What was never deleted stays as it is."""
        row = get_object_or_404(Experiment.objects.select_related("author"), pk=pk)
        deeds.restore(member(request), row)
        return _one(_visible(pk))


class RunList(APIView):
    @extend_schema(
        operation_id="runs_list",
        parameters=[CURSOR, PAGE_SIZE, OpenApiParameter("experiment", int, description="Of this experiment alone.")],
        responses={200: RunPage, **problems(404, 422)},
    )
    def get(self, request: Request) -> Response:
        """Runs with their summaries, newest first."""
        rows = Run.objects.filter(experiment__deleted_at=None).only(
            "experiment_id", "variant", "condition", "status", "summary", "origins", "notes"
        )
        wanted = request.query_params.get("experiment")
        if wanted is not None:
            if not (wanted.isascii() and wanted.isdecimal() and len(wanted) < 18):
                raise Refused("experiment", f"{wanted!r} is not the number of an experiment")
            rows = rows.filter(experiment=int(wanted))
        return page(request, self, rows, RunSummary.of)


class MachineList(APIView):
    @extend_schema(
        operation_id="machines_list", parameters=[CURSOR, PAGE_SIZE], responses={200: MachinePage, **problems(404)}
    )
    def get(self, request: Request) -> Response:
        """Every state of every machine that a worker registered, newest first."""
        return page(request, self, Machine.objects.all(), MachineState.of)


@extend_schema(exclude=True)
class Nothing(APIView):
    """Every other address."""

    def get(self, request: Request, rest: str) -> Response:
        raise Http404("Nothing has this address; all that have something end with a slash.")

    post = put = patch = delete = get


def _visible(pk: int) -> Experiment:
    """As `visible`, without what only results and pages read: programs ask again and again."""
    return visible(pk, without=HEAVY)


def _one(row: Experiment, status: int = 200) -> Response:
    return one(ExperimentDetail.of(row), status)
