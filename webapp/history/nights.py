"""Queuing what schedules ask for, once for each due time.

Every worker looks every few seconds, also while it measures (see `attendant`). Whoever comes first writes the night and
queues its experiment in one transaction; the database lets no second night of the same due time in.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from functools import partial

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from bench_worker.errors import DoesNotFit
from bench_worker.spec import Experiment as Asked
from bench_worker.spec import SpecError
from webapp.accounts.models import User
from webapp.experiments import attendant, memory, queue
from webapp.experiments.models import State
from webapp.history.models import CatchUp, Night, Schedule
from webapp.history.timetable import last_due
from webapp.traces.store import traces_library

#: A night that is queued so much after its time was missed, and the schedule's catch-up policy decides.
LATE = timedelta(minutes=15)
TAG = "nightly"

log = logging.getLogger(__name__)


def queue_due(now: datetime | None = None) -> None:
    """Begin the night of every schedule that is due and has none. Safe to run twice at once and at any time; a schedule
    that fails holds up no other."""
    now = now or timezone.now()
    schedules = Schedule.objects.filter(is_on=True).select_related("owner").annotate(latest=Max("nights__due_at"))
    for schedule in schedules:
        due_at = last_due(schedule.days, schedule.at, now)
        if due_at >= schedule.since and (schedule.latest is None or schedule.latest < due_at):
            attendant.done(partial(_begin, schedule, due_at, now, by=itself(schedule)))


def run_now(schedule: Schedule, by: User, now: datetime | None = None) -> Night | None:
    """Begin a night that nobody planned, as ``by`` asks. None: one was begun in this minute, as by a second click."""
    now = now or timezone.now()
    return _begin(schedule, now.replace(second=0, microsecond=0), now, by)


def itself(schedule: Schedule) -> str:
    """The schedule in the audit list: what it queues belongs to its owner, who did not queue it."""
    return f"schedule {schedule.title}"


@transaction.atomic
def _begin(schedule: Schedule, due_at: datetime, now: datetime, by: User | str) -> Night | None:
    """None: the night is there already."""
    night, is_first = Night.objects.get_or_create(schedule=schedule, due_at=due_at)
    if not is_first:
        return None
    night.left_out = _hindrance(schedule, due_at, now)
    if not night.left_out:
        try:
            asked = Asked.model_validate(schedule.document, context=traces_library())
            memory.check(asked, schedule.pool)
        except (SpecError, DoesNotFit) as error:
            night.left_out = str(error)
        else:
            night.experiment = queue.enqueue(asked, author=schedule.owner, by=by, pool=schedule.pool, tags=[TAG])
    if night.left_out:
        log.warning("Schedule %s: the night of %s is left out: %s", schedule.pk, due_at, night.left_out)
    night.save()
    return night


def _hindrance(schedule: Schedule, due_at: datetime, now: datetime) -> str:
    """One sentence: why the night must not be queued; empty where it may."""
    if schedule.owner_trouble:
        return f"{schedule.owner_trouble}: give it another one."
    if now - due_at > LATE and schedule.catch_up == CatchUp.SKIP:
        return "No worker was there to queue it in time, and this schedule skips what was missed."
    if schedule.nights.filter(experiment__state=State.QUEUED, experiment__deleted_at=None).exists():
        return "An earlier night of it still waits for a worker."
    return ""
