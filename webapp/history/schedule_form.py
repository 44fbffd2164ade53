"""Asking for a schedule, and changing one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from webapp.accounts.models import User
from webapp.experiments import machines
from webapp.experiments.models import Experiment, Kind
from webapp.history.models import CatchUp, Schedule
from webapp.history.timetable import DAYS
from webapp.numbers import number_in

#: Offered to choose from, the latest first; others come by their own page.
OFFERED = 50
MAX_HOURS = 72
FARTHEST = timedelta(days=366)
TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
NOT_A_TIME = "{!r} is not a time of day: write hours and minutes, as in 02:30, and tick the days above."


class ScheduleForm(forms.Form):
    """Of a new schedule, or of ``schedule``, which keeps its experiment. ``now`` decides what lies in the past."""

    experiment = forms.TypedChoiceField(label="Experiment", coerce=int, help_text="It is copied as it is now.")
    title = forms.CharField(label="Title", max_length=200, required=False, help_text="Empty: the experiment's own.")
    days = forms.TypedMultipleChoiceField(
        label="Days",
        coerce=int,
        choices=list(enumerate(DAYS)),
        initial=list(range(7)),
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Tick at least one day."},
    )
    at = forms.CharField(
        label="Time, UTC", initial="02:00", widget=forms.TextInput(attrs={"data-utc": "", "autocomplete": "off"})
    )
    first_on = forms.DateField(
        label="First day",
        required=False,
        widget=forms.DateInput(attrs={"type": "date"}),
        help_text="Empty: as soon as it is due.",
        error_messages={"invalid": "Write the day as year-month-day, as in 2031-01-31."},
    )
    pool = forms.ChoiceField(label="Pool")
    owner = forms.ModelChoiceField(User.objects.none(), label="Owner", help_text="Its nights are queued in this name.")
    catch_up = forms.ChoiceField(label="A night that nothing could queue in time", choices=CatchUp.choices)
    measures_again = forms.ChoiceField(
        label="A night that looks slower", required=False,
        choices=[(True, "measure it again at once"), (False, "wait for the next night")],
        help_text="A re-run that agrees may confirm it hours earlier, and one that does not spares a false alert.",
    )  # fmt: skip
    hours = forms.IntegerField(
        label="Hours until it must have ended", min_value=1, max_value=MAX_HOURS, initial=6,
        help_text="If it has not by then, home says so.",
    )  # fmt: skip

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        *,
        now: datetime,
        schedule: Schedule | None = None,
        initial: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(data, initial=_said(schedule, now) if schedule else initial, label_suffix="")
        self.now, self.schedule = now, schedule
        self.fields["pool"].choices = [(pool, pool) for pool in machines.pools()]  # type: ignore[attr-defined]
        self.fields["owner"].queryset = User.objects.order_by("username")  # type: ignore[attr-defined]
        if schedule:
            del self.fields["experiment"]
        else:
            offered = choices(initial.get("experiment") if initial else data.get("experiment") if data else None)
            self.fields["experiment"].choices = offered  # type: ignore[attr-defined]

    def clean_at(self) -> time:
        text = self.cleaned_data["at"].strip()
        found = TIME.fullmatch(text)
        if found is None:
            raise ValidationError(NOT_A_TIME.format(text[:40]))
        return time(int(found[1]), int(found[2]))

    def clean_measures_again(self) -> bool:
        return bool(self.cleaned_data["measures_again"] != "False")

    def clean_owner(self) -> User:
        owner: User = self.cleaned_data["owner"]
        if not owner.is_active:
            raise ValidationError(f"{owner} is disabled: choose a member who may sign in.")
        if not owner.may_run:
            raise ValidationError(f"{owner} may only read: choose a runner or an administrator.")
        return owner

    def clean(self) -> None:
        first_on, at = self.cleaned_data.get("first_on"), self.cleaned_data.get("at")
        if first_on and at and datetime.combine(first_on, at, UTC) <= self.now:
            self.add_error(
                "first_on",
                f"{first_on} {at:%H:%M} UTC is in the past (it is {self.now:%Y-%m-%d %H:%M} UTC): name a later day, or "
                "leave it empty.",
            )
        elif first_on and first_on > self.now.date() + FARTHEST:
            self.add_error("first_on", f"{first_on} is too far away; at most {FARTHEST.days} days are allowed.")

    def save(self) -> Schedule:
        """Write it. Only due times from now on, or from the first day on, count."""
        given = self.cleaned_data
        schedule = self.schedule or _copied(given["experiment"])
        if given["title"]:
            schedule.title = given["title"]
        schedule.document["title"] = schedule.title
        for name in ("at", "pool", "owner", "catch_up", "measures_again", "hours"):
            setattr(schedule, name, given[name])
        schedule.days = sorted(given["days"])
        first_on = given["first_on"]
        schedule.since = max(self.now, datetime.combine(first_on, time.min, UTC)) if first_on else self.now
        schedule.save()
        return schedule


def choices(wanted: Any = None) -> list[tuple[int, str]]:
    """The latest experiments by number and title, the one that is ``wanted`` among them where it exists."""
    rows = Experiment.objects.visible().filter(kind=Kind.EXPERIMENT)
    offered = list(rows.values_list("pk", "title")[:OFFERED])
    number = number_in(str(wanted or ""))
    if number is not None and number not in dict(offered):
        offered = [*rows.filter(pk=number).values_list("pk", "title"), *offered]
    return [(pk, f"{title[:80]} (#{pk})") for pk, title in offered]


def _copied(pk: int) -> Schedule:
    row = Experiment.objects.get(pk=pk)
    return Schedule(title=row.title, document=row.document)


def _said(schedule: Schedule, now: datetime) -> dict[str, Any]:
    names = ("title", "days", "pool", "owner", "catch_up", "measures_again", "hours")
    first_on = schedule.since.date() if schedule.since > now else None
    return {name: getattr(schedule, name) for name in names} | {"at": f"{schedule.at:%H:%M}", "first_on": first_on}
