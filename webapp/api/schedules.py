"""Schedules over the API."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, Literal

from django.conf import settings
from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from pydantic import BaseModel, Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from bench_worker.errors import not_one_of
from webapp.accounts.models import User
from webapp.accounts.roles import member, require_change
from webapp.api.answers import Asked, Page, accepted, asked, made, one, page
from webapp.api.once import once
from webapp.api.problems import Refused, problem
from webapp.api.schema import CURSOR, KEY, PAGE_SIZE, made_once, problems
from webapp.experiments.fields import in_order
from webapp.history import deeds, nights, watchdog
from webapp.history.models import Night, Schedule
from webapp.history.schedule_form import MAX_HOURS, ScheduleForm
from webapp.history.schedule_views import NIGHTS
from webapp.history.timetable import DAYS

Day = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
CatchUp = Literal["skip", "once"]


class NightState(BaseModel):
    """One due time of a schedule."""

    due_at: datetime
    experiment: int | None = Field(description="What was queued for it.")
    left_out: str = Field(description="One sentence: why nothing was queued.")

    @classmethod
    def of(cls, night: Night) -> NightState:
        return cls(due_at=night.due_at, experiment=night.experiment_id, left_out=night.left_out)


class ScheduleState(BaseModel):
    """An experiment that is queued again and again."""

    id: int
    title: str
    days: list[Day]
    at: str = Field(description="Time of day in UTC, as in 02:30.")
    pool: str
    owner: str | None = Field(description="In whose name its nights are queued.")
    is_on: bool
    catch_up: CatchUp = Field(description="What becomes of a night that nothing could queue in time.")
    measures_again: bool = Field(description="A night that looks slower is measured again at once.")
    hours: int = Field(description="After so many a night that has not ended is a concern.")
    since: datetime = Field(description="Due times before this don't count.")
    next_due: datetime | None = Field(description="None while it is off.")
    concerns: list[str] = Field(description="What is wrong with it, a sentence each.")
    url: str = Field(description="Where the page of schedules shows it.")

    @classmethod
    def of(cls, line: watchdog.Line, **more: Any) -> Any:
        schedule = line.schedule
        names = ("id", "title", "pool", "is_on", "catch_up", "measures_again", "hours", "since")
        return cls(
            **{name: getattr(schedule, name) for name in names},
            days=[DAYS[day] for day in schedule.days],
            at=f"{schedule.at:%H:%M}",
            owner=schedule.owner.get_username() if schedule.owner else None,
            next_due=line.next_due,
            concerns=line.concerns,
            url=schedule.get_absolute_url(),
            **more,
        )


class ScheduleDetail(ScheduleState):
    """With what it queues and its latest nights."""

    experiment: dict[str, Any] = Field(description="What is queued, with every default written out.")
    nights: list[NightState] = Field(description=f"The latest {NIGHTS}, the latest first.")


class SchedulePage(Page):
    results: list[ScheduleState]


class ScheduleChange(Asked):
    """New words for a schedule. What is left out stays; of a new one it is as the page proposes it."""

    title: str | None = Field(default=None, description="At most 200 characters; of a new one the experiment's own.")
    days: list[Day] | None = Field(default=None, description="Of a new one every day.")
    at: str | None = Field(default=None, description="Time of day in UTC, as in 02:30; of a new one 02:00.")
    first_on: date | None = Field(default=None, description="First day; without it, as soon as it is due.")
    pool: str | None = Field(default=None, description="Of a new one the default pool.")
    owner: str | None = Field(default=None, description="A member's name; of a new one your own.")
    catch_up: CatchUp | None = Field(default=None, description="Of a new one `skip`.")
    measures_again: bool | None = Field(default=None, description="Of a new one true.")
    hours: int | None = Field(default=None, description=f"1 to {MAX_HOURS}; of a new one 6.")


class ScheduleAsked(ScheduleChange):
    """A new schedule."""

    experiment: int = Field(description="The one to queue again and again; its document is copied as it is now.")


class Switch(Asked):
    on: bool


class ScheduleList(APIView):
    @extend_schema(
        operation_id="schedules_list", parameters=[CURSOR, PAGE_SIZE], responses={200: SchedulePage, **problems(404)}
    )
    def get(self, request: Request) -> Response:
        """Every schedule, newest first, when it is due and what is wrong with it."""
        lines = _lines()
        rows = Schedule.objects.filter(pk__in=lines).only("pk")
        return page(request, self, rows, lambda row: ScheduleState.of(lines[row.pk]))

    @extend_schema(
        operation_id="schedules_create",
        parameters=[KEY],
        request=ScheduleAsked,
        responses=made_once(ScheduleDetail, 413, 422, done="made"),
    )
    def post(self, request: Request) -> Response:
        """Queue an experiment again and again."""

        def make() -> Schedule:
            now, given = timezone.now(), asked(request, ScheduleAsked)
            proposed = {name: field.initial for name, field in ScheduleForm(now=now).fields.items()}
            usual = {"pool": settings.MOESCOPE_POOL, "owner": member(request).pk, "catch_up": "skip", "title": ""}
            form = accepted(ScheduleForm(proposed | usual | _posted(given), now=now))
            return deeds.save(member(request), form)

        schedule, is_new = once(request, Schedule, make)
        return made(_detail(schedule.pk), is_new)


class ScheduleOne(APIView):
    @extend_schema(operation_id="schedules_get", responses={200: ScheduleDetail, **problems(404)})
    def get(self, request: Request, pk: int) -> Response:
        """One schedule, with its latest nights."""
        return one(_detail(pk))

    @extend_schema(
        operation_id="schedules_change",
        request=ScheduleChange,
        responses={200: ScheduleDetail, **problems(404, 413, 422)},
    )
    def patch(self, request: Request, pk: int) -> Response:
        """Change it; due times before now don't count any more."""
        schedule = _found(pk)
        require_change(member(request), schedule.owner)
        form = ScheduleForm(now=timezone.now(), schedule=schedule)
        stays = {name: form[name].value() for name in form.fields}
        owner = {"owner": schedule.owner and schedule.owner.pk}
        given = _posted(asked(request, ScheduleChange))
        form = accepted(ScheduleForm(stays | owner | given, now=timezone.now(), schedule=schedule))
        deeds.save(member(request), form)
        return one(_detail(pk))

    @extend_schema(operation_id="schedules_delete", responses={204: None, **problems(404)})
    def delete(self, request: Request, pk: int) -> Response:
        """It runs no more. Its experiments stay."""
        deeds.delete(member(request), _found(pk))
        return Response(status=204)


class ScheduleSwitch(APIView):
    @extend_schema(
        operation_id="schedules_switch", request=Switch, responses={200: ScheduleDetail, **problems(404, 413, 422)}
    )
    def post(self, request: Request, pk: int) -> Response:
        """On or off. What was due while it was off does not count."""
        deeds.switch(member(request), _found(pk), asked(request, Switch).on)
        return one(_detail(pk))


class ScheduleRun(APIView):
    @extend_schema(
        operation_id="schedules_run",
        parameters=[KEY],
        request=None,
        responses=made_once(NightState, 404, 409, 422),
    )
    def post(self, request: Request, pk: int) -> Response:
        """Queue it now, once a minute."""
        schedule = _found(pk)

        def make() -> Night:
            night = nights.run_now(schedule, member(request))
            if night is None:
                raise _Begun
            return night

        try:
            night, is_new = once(request, Night, make)
        except _Begun:
            return problem(409, f"Schedule {pk} was begun in this minute already.")
        if night.left_out:
            return problem(409, f"Schedule {pk} is not queued: {night.left_out}")
        return made(NightState.of(night), is_new)


class _Begun(Exception):
    """There is a night of this minute."""


def _found(pk: int) -> Schedule:
    return get_object_or_404(Schedule.objects.select_related("owner"), pk=pk)


def _lines() -> dict[int, watchdog.Line]:
    return {line.schedule.pk: line for line in watchdog.lines(timezone.now())}


def _detail(pk: int) -> ScheduleDetail:
    schedule = _found(pk)
    found: ScheduleDetail = ScheduleDetail.of(
        _lines()[pk],
        experiment=in_order(schedule.document),
        nights=[NightState.of(night) for night in schedule.nights.all()[:NIGHTS]],
    )
    return found


def _posted(given: ScheduleChange) -> dict[str, Any]:
    """What the form takes: days and the owner by their keys."""
    values = given.model_dump(exclude_none=True)
    if "days" in values:
        values["days"] = [DAYS.index(day) for day in values["days"]]
    if "owner" in values:
        members = dict(User.objects.values_list("username", "pk"))
        if values["owner"] not in members:
            raise Refused("owner", not_one_of(values["owner"], list(members)))
        values["owner"] = members[values["owner"]]
    return values
