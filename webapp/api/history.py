"""The history over the API: series, their changes and what the team says of them, and what it was told."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, Literal, get_args

from django.db.models import Prefetch, QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from pydantic import BaseModel, Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from bench_worker.errors import not_one_of
from webapp.accounts.roles import member
from webapp.api.answers import Asked, Page, accepted, asked, one, page
from webapp.api.problems import Refused
from webapp.api.schema import CURSOR, PAGE_SIZE, problems
from webapp.history import deeds
from webapp.history.models import Change, Delivery, Digest, Point, Series
from webapp.history.series import DRAWN
from webapp.history.triage_form import MAX_NOTE, TriageForm

Decision = Literal["new", "acknowledged", "fixed", "expected", "noise"]


class NightValue(BaseModel):
    at: datetime = Field(description="When the run was due, or ended where no schedule asked for it.")
    value: float
    run: int
    experiment: int


class SeriesChange(BaseModel):
    """A change of level."""

    id: int
    since: datetime = Field(description="The first night of the new level.")
    ratio: float = Field(description="New level / old level; above 1 is slower.")
    p_value: float
    confirmed_at: datetime | None = Field(description="When a further night bore it out.")
    state: Decision = Field(description="What the team says of it.")
    note: str

    @classmethod
    def of(cls, change: Change, **more: Any) -> Any:
        names = SeriesChange.model_fields.keys() - {"since"}
        return cls(since=change.first.at, **{name: getattr(change, name) for name in names}, **more)


class ChangeState(SeriesChange):
    """With the series that it is of, and who decided."""

    series: int
    title: str
    machine: str
    variant: str
    condition: str
    metric: str
    last_before: datetime = Field(description="The last night of the old level.")
    told_at: datetime | None = Field(description="When a digest told it, or an event that it is part of.")
    by: str | None = Field(description="Who decided.")
    decided_at: datetime | None
    url: str = Field(description="The page of its series.")

    @classmethod
    def of(cls, change: Change, **more: Any) -> ChangeState:
        series = change.series
        found: ChangeState = super().of(
            change,
            series=series.pk,
            title=series.group.title,
            machine=series.group.machine,
            **{name: getattr(series, name) for name in ("variant", "condition", "metric")},
            **{name: getattr(change, name) for name in ("told_at", "decided_at")},
            last_before=change.last_before.at,
            by=change.by.get_username() if change.by else None,
            url=series.get_absolute_url(),
        )
        return found


class SeriesHistory(BaseModel):
    """One number of an experiment over its nights, on one class of machine."""

    id: int
    title: str
    machine: str
    variant: str
    condition: str
    metric: str = Field(description="Times in the unit of the name's end; stages in µs of one MoE layer.")
    nights: list[NightValue] = Field(description="The latest 60, in order of time.")
    changes: list[SeriesChange] = Field(description="The latest first.")
    url: str = Field(description="Its page.")

    @classmethod
    def of(cls, series: Series) -> SeriesHistory:
        """``series``: of `with_nights`."""
        points: list[Point] = series.latest  # type: ignore[attr-defined]
        return cls(
            **{name: getattr(series, name) for name in ("id", "variant", "condition", "metric")},
            title=series.group.title,
            machine=series.group.machine,
            nights=[
                NightValue(at=one.record.at, value=one.value, run=one.run_id, experiment=one.record.experiment_id)
                for one in reversed(points)
            ],
            changes=[SeriesChange.of(one) for one in series.changes.all()],
            url=series.get_absolute_url(),
        )


def with_nights(rows: QuerySet[Series]) -> QuerySet[Series]:
    """``rows`` with what `SeriesHistory` tells of them, in three queries. Deleted experiments are left out."""
    points = Point.objects.filter(record__experiment__deleted_at=None).select_related("record")
    latest = points.order_by("-record__at", "-record")[:DRAWN]
    changes = Change.objects.select_related("first").order_by("-first__at")
    return rows.select_related("group").prefetch_related(
        Prefetch("points", latest, to_attr="latest"), Prefetch("changes", changes)
    )


class Told(BaseModel):
    """A digest on its way to one address."""

    to: str = Field(description="An e-mail address, or the host of a webhook.")
    tries: int
    sent_at: datetime | None
    next_try_at: datetime
    failure: str = Field(description="Why the last try failed.")

    @classmethod
    def of(cls, delivery: Delivery) -> Told:
        names = cls.model_fields.keys() - {"to"}
        return cls(to=delivery.shown, **{name: getattr(delivery, name) for name in names})


class AlertState(BaseModel):
    """What the team was told of one night: a digest, and whether it arrived."""

    id: int
    night: date
    subject: str
    text: str
    deliveries: list[Told]

    @classmethod
    def of(cls, digest: Digest) -> AlertState:
        names = ("id", "night", "subject", "text")
        deliveries = [Told.of(one) for one in digest.deliveries.all()]
        return cls(**{name: getattr(digest, name) for name in names}, deliveries=deliveries)


class SeriesPage(Page):
    results: list[SeriesHistory]


class ChangePage(Page):
    results: list[ChangeState]


class AlertPage(Page):
    results: list[AlertState]


class Triage(Asked):
    """What the team says about a change."""

    state: Decision
    note: str = Field(default="", description=f"At most {MAX_NOTE:,} characters.")


class SeriesList(APIView):
    @extend_schema(
        operation_id="series_list", parameters=[CURSOR, PAGE_SIZE], responses={200: SeriesPage, **problems(404)}
    )
    def get(self, request: Request) -> Response:
        """Every number that is followed from night to night, with its changes of level."""
        return page(request, self, with_nights(Series.objects.all()), SeriesHistory.of)


class SeriesOne(APIView):
    @extend_schema(operation_id="series_get", responses={200: SeriesHistory, **problems(404)})
    def get(self, request: Request, pk: int) -> Response:
        """One number that is followed from night to night."""
        return one(SeriesHistory.of(get_object_or_404(with_nights(Series.objects.all()), pk=pk)))


class ChangeList(APIView):
    @extend_schema(
        operation_id="changes_list",
        parameters=[CURSOR, PAGE_SIZE, OpenApiParameter("state", str, enum=get_args(Decision))],
        responses={200: ChangePage, **problems(404, 422)},
    )
    def get(self, request: Request) -> Response:
        """Every change of level of any series, the latest found first."""
        rows, state = _changes(), request.query_params.get("state")
        if state is not None:
            if state not in get_args(Decision):
                raise Refused("state", not_one_of(state, get_args(Decision)))
            rows = rows.filter(state=state)
        return page(request, self, rows, ChangeState.of)


class ChangeOne(APIView):
    @extend_schema(operation_id="changes_get", responses={200: ChangeState, **problems(404)})
    def get(self, request: Request, pk: int) -> Response:
        """One change of level."""
        return one(ChangeState.of(get_object_or_404(_changes(), pk=pk)))

    @extend_schema(
        operation_id="changes_triage", request=Triage, responses={200: ChangeState, **problems(404, 413, 422)}
    )
    def patch(self, request: Request, pk: int) -> Response:
        """Say what it is; the other series that changed with it, and that nobody decided about, are told the same."""
        change = get_object_or_404(_changes(), pk=pk)
        form = accepted(TriageForm(asked(request, Triage).model_dump()))
        deeds.triage(member(request), change, **form.cleaned_data)
        return one(ChangeState.of(get_object_or_404(_changes(), pk=pk)))


class AlertList(APIView):
    @extend_schema(
        operation_id="alerts_list", parameters=[CURSOR, PAGE_SIZE], responses={200: AlertPage, **problems(404)}
    )
    def get(self, request: Request) -> Response:
        """What the team was told, the latest first, and whether it arrived."""
        return page(request, self, Digest.objects.prefetch_related("deliveries"), AlertState.of)


def _changes() -> QuerySet[Change]:
    return Change.objects.select_related("series__group", "first", "last_before", "by")
