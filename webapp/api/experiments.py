"""Experiments over the API: queued, followed, changed. The document that it takes is `bench_worker.spec.Experiment`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.conf import settings
from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from pydantic import BaseModel, Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from bench_worker import spec
from bench_worker.errors import not_one_of
from webapp.accounts.roles import member
from webapp.api.answers import Asked, Page, accepted, asked, made, one, page, refuse
from webapp.api.once import once
from webapp.api.problems import Refused, problem
from webapp.api.schema import CURSOR, KEY, LABELS, PAGE_SIZE, POOL, made_once, problems
from webapp.experiments import deeds, labels, machines, memory, present, queue
from webapp.experiments.fields import in_order
from webapp.experiments.filters import DELETED, ExperimentFilter
from webapp.experiments.forms import DescriptionForm
from webapp.experiments.models import Experiment, Kind
from webapp.experiments.models import State as States
from webapp.experiments.views import visible
from webapp.traces.store import traces_library

State = Literal["queued", "running", "ingesting", "done", "failed", "canceled"]
HEAVY = ("plan", "result", "so_far")


class ExperimentState(BaseModel):
    """An experiment on its way, or ended."""

    id: int
    kind: Literal["experiment", "kernels"]
    title: str
    state: State
    pool: str
    author: str | None
    models: list[str]
    tags: list[str]
    labels: dict[str, str] = Field(description="Marks in the history: its own and its worker's.")
    notes: str
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempt: int
    cancel_requested: bool
    answer: str = Field(description="One sentence: what came out.")
    failure: str = Field(description="One sentence: why it failed.")
    url: str = Field(description="Its page.")

    @classmethod
    def of(cls, row: Experiment, **more: Any) -> Any:
        names = cls.model_fields.keys() - {"author", "models", "url"} - more.keys()
        values = {name: getattr(row, name) for name in names}
        author = row.author.get_username() if row.author else None
        return cls(**values, author=author, models=row.model_names, url=row.get_absolute_url(), **more)


class ExperimentDetail(ExperimentState):
    """With what was asked and how far it is."""

    experiment: dict[str, Any] = Field(description="What was asked, with every default written out.")
    machine: str | None
    doing: str | None = Field(description="What the worker does at the moment.")
    percent: int | None
    left_s: float | None = Field(description="Seconds until its end, at the pace so far.")
    last_output: str

    @classmethod
    def of(cls, row: Experiment, **more: Any) -> ExperimentDetail:
        is_experiment = row.kind == Kind.EXPERIMENT
        now = present.now(row.progress, timezone.now()) if row.state == States.RUNNING else None
        return super().of(
            row,
            experiment=in_order(row.document) if is_experiment else row.document,
            machine=row.machine.name if row.machine else None,
            doing=now.doing if now else None,
            percent=now.percent if now else None,
            left_s=now.left_s if now else None,
        )


class ExperimentPage(Page):
    results: list[ExperimentState]


class Description(Asked):
    """New words for an experiment. What is left out stays."""

    title: str | None = Field(default=None, description="One line, at most 200 characters.")
    tags: list[str] | None = None
    notes: str | None = Field(default=None, description="At most 10,000 characters.")


class ExperimentList(APIView):
    @extend_schema(
        operation_id="experiments_list",
        parameters=[
            CURSOR,
            PAGE_SIZE,
            OpenApiParameter(
                "state", str, enum=[*States, DELETED], description="`deleted`: and not gone for good yet."
            ),
            OpenApiParameter("kind", str, enum=list(Kind)),
            OpenApiParameter("q", str, description="Words, all of them, in title, notes or answer; or a number."),
            OpenApiParameter("model", str, description="A preset that it measures."),
            OpenApiParameter("author", str, description="A member's name."),
            OpenApiParameter("tag", str),
        ],
        responses={200: ExperimentPage, **problems(404, 422)},
    )
    def get(self, request: Request) -> Response:
        """Experiments, newest first, that pass every filter."""
        query = request.query_params
        rows = Experiment.objects.select_related("author").defer(*HEAVY, "document", "last_output")
        for name, known in (("state", [*States, DELETED]), ("kind", list(Kind))):
            if (value := query.get(name)) is not None and value not in known:
                raise Refused(name, not_one_of(value, known))
            if value not in (None, DELETED):
                rows = rows.filter(**{name: value})
        deleted = {"state": DELETED} if query.get("state") == DELETED else {}
        words = {name: query.get(name, "") for name in ("q", "model", "author", "tag")}
        return page(request, self, filtered(ExperimentFilter(words | deleted, queryset=rows)), ExperimentState.of)

    @extend_schema(
        operation_id="experiments_create",
        parameters=[POOL, LABELS, KEY],
        request=spec.Experiment,
        responses=made_once(ExperimentDetail, 413, 422),
    )
    def post(self, request: Request) -> Response:
        """Queue an experiment file, schema 1."""
        pool = pool_of(request)
        given = labels.parse(request.query_params.getlist("label"), "label")

        def make() -> Experiment:
            experiment = spec.parse_experiment(request.body, traces_library())
            memory.check(experiment, pool)
            return queue.enqueue(experiment, author=member(request), pool=pool, labels=given)

        row, is_new = once(request, Experiment, make)
        return made(ExperimentDetail.of(row), is_new)


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
        responses=made_once(ExperimentDetail, 404, 422),
    )
    def post(self, request: Request, pk: int) -> Response:
        """Queue the same document again, as an experiment of its own."""
        row = _visible(pk)
        again, is_new = once(request, Experiment, lambda: deeds.queue_again(member(request), row))
        return made(ExperimentDetail.of(again), is_new)


class ExperimentNext(APIView):
    @extend_schema(
        operation_id="experiments_next",
        parameters=[KEY],
        request=None,
        responses=made_once(ExperimentDetail, 404, 422),
    )
    def post(self, request: Request, pk: int, place: int) -> Response:
        """Queue what the verdict in the result advises, counted from 0."""
        row = visible(pk)
        following, is_new = once(request, Experiment, lambda: deeds.queue_advised(member(request), row, place))
        return made(ExperimentDetail.of(following), is_new)


class ExperimentRestore(APIView):
    @extend_schema(operation_id="experiments_restore", request=None, responses={200: ExperimentDetail, **problems(404)})
    def post(self, request: Request, pk: int) -> Response:
        """Undo a deletion. What was never deleted stays as it is."""
        row = get_object_or_404(Experiment.objects.select_related("author"), pk=pk)
        deeds.restore(member(request), row)
        return _one(_visible(pk))


def _visible(pk: int) -> Experiment:
    """As `visible`, without what only results and pages read: programs ask again and again."""
    return visible(pk, without=HEAVY)


def _one(row: Experiment) -> Response:
    return one(ExperimentDetail.of(row))


def pool_of(request: Request) -> str:
    """The pool that the address names, or the default one. Raises `Refused`."""
    pool = request.query_params.get("pool", settings.MOESCOPE_POOL)
    if pool not in (known := machines.pools()):
        raise Refused("pool", not_one_of(pool, known))
    return pool


def filtered(chosen: Any) -> QuerySet[Any]:
    """The rows that pass ``chosen``, filters of a page. Raises `Refused`."""
    if not chosen.is_valid():
        refuse(chosen.form)
    rows: QuerySet[Any] = chosen.qs
    return rows
