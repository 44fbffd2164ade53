"""What is wrong with the nights, said on the home page and at the schedule: nothing that stops runs is silent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import OuterRef, Subquery

from webapp.experiments import machines
from webapp.experiments.models import Experiment, State
from webapp.history.models import Night, Schedule
from webapp.history.timetable import last_due
from webapp.ui.formatting import ago, span

#: Workers look every few seconds; a night that is not there so long after it was due deserves a word.
LATE_AFTER = timedelta(minutes=2)


class Line(NamedTuple):
    """A schedule with its latest night, or None, when it is due next (None: it is off) and what is wrong, if anything:
    whole sentences."""

    schedule: Schedule
    night: Night | None
    next_due: datetime | None
    concerns: list[str]


def lines(now: datetime) -> list[Line]:
    """Every schedule, in three queries."""
    latest = Night.objects.filter(schedule=OuterRef("pk")).order_by("-due_at").values("pk")[:1]
    schedules = list(Schedule.objects.select_related("owner").annotate(latest=Subquery(latest)))
    light = ("experiment__" + name for name in ("state", "title", "finished_at", "failure", "answer", "deleted_at"))
    found = Night.objects.filter(pk__in=[schedule.latest for schedule in schedules]).select_related("experiment")
    nights = {night.schedule_id: night for night in found.only("schedule", "due_at", "left_out", *light)}
    heard_of = last_heard(machines.latest()) if schedules else {}
    return [
        Line(
            schedule,
            night := nights.get(schedule.pk),
            schedule.next_due(now) if schedule.is_on else None,
            list(concerns(schedule, night, heard_of.get(schedule.pool), now)) if schedule.is_on else [],
        )
        for schedule in schedules
    ]


def last_heard(known: Sequence[machines.Machine]) -> dict[str, datetime]:
    """When a worker of each pool was last heard of."""
    return {machine.pool: machine.last_seen for machine in sorted(known, key=lambda machine: machine.last_seen)}


def concerns(schedule: Schedule, night: Night | None, heard_of: datetime | None, now: datetime) -> Iterable[str]:
    """``heard_of``: when a worker of its pool last was, None for never."""
    if schedule.owner_trouble:
        yield f"{schedule.owner_trouble}: no night will be queued."
    if heard_of is None:
        yield f"No worker of pool {schedule.pool} has ever been heard of."
    elif now - heard_of > machines.SILENT_AFTER:
        yield f"No worker of pool {schedule.pool} has been heard of since {ago(heard_of, now)}."
    due_at = last_due(schedule.days, schedule.at, now)
    if due_at >= schedule.since and now - due_at > LATE_AFTER and (night is None or night.due_at < due_at):
        yield f"It was due {ago(due_at, now)}, and no worker has queued it."
    elif night is not None and (sentence := _about(night, schedule.hours, now)):
        yield sentence


def _about(night: Night, hours: int, now: datetime) -> str:
    row: Experiment | None = night.experiment
    day, age = f"{night.due_at:%b %d}", now - night.due_at
    if night.left_out:
        return f"The night of {day} was left out: {night.left_out}"
    if row is None or row.deleted_at is not None:
        return ""  # somebody deleted it
    if row.state == State.FAILED:
        return f"The night of {day} failed: {row.failure}"
    if not row.is_ended and age > timedelta(hours=hours):
        return f"The night of {day} is still {row.state}, {span(age.total_seconds())} after it was due."
    return ""
