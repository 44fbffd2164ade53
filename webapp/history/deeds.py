"""What a member does with a schedule or a change, in the browser or over the API: whether they may, the deed, and its
line in the audit list. Each raises `PermissionDenied`, in a sentence, for who may not."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from webapp.accounts import audit
from webapp.accounts.models import Deed, User
from webapp.accounts.roles import require_change
from webapp.history.models import Change, Schedule, Triage
from webapp.history.schedule_form import ScheduleForm
from webapp.history.series import decide


@transaction.atomic
def save(by: User, form: ScheduleForm) -> Schedule:
    """The new schedule, or the changed one, of a valid ``form``."""
    if form.schedule is not None:
        require_change(by, form.schedule.owner)
    schedule = form.save()
    audit.note(by, Deed.Action.CHANGED, schedule)
    return schedule


@transaction.atomic
def switch(by: User, schedule: Schedule, is_on: bool) -> None:
    """On or off. What was due while it was off does not count."""
    require_change(by, schedule.owner)
    since = timezone.now() if is_on and not schedule.is_on else schedule.since
    Schedule.objects.filter(pk=schedule.pk).update(is_on=is_on, since=since)
    audit.note(by, Deed.Action.CHANGED, schedule)


@transaction.atomic
def delete(by: User, schedule: Schedule) -> None:
    """Its experiments stay."""
    require_change(by, schedule.owner)
    audit.note(by, Deed.Action.DELETED, schedule)
    schedule.delete()


@transaction.atomic
def triage(by: User, change: Change, state: Triage, note: str) -> int:
    """Say what a change is, and with it what changed in the same nights; how many."""
    count = decide(change, state, note, by, timezone.now())
    audit.note(by, Deed.Action.CHANGED, change.series)
    return count
