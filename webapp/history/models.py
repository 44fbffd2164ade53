"""What runs each night, and what its numbers came to over time."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.urls import reverse

from webapp.experiments.models import Experiment
from webapp.history import timetable


class CatchUp(models.TextChoices):
    """What to do about a due time at which nothing could queue the run."""

    SKIP = "skip", "skip it"
    ONCE = "once", "run once, however many were missed"


class Schedule(models.Model):
    """An experiment that is queued again and again, at one time of day in UTC. See `nights`."""

    title = models.CharField(max_length=200)
    document = models.JSONField(help_text="The experiment file, as it was when the schedule was made.")
    days = ArrayField(models.PositiveSmallIntegerField(), help_text="0 for Monday to 6 for Sunday.")
    at = models.TimeField(help_text="UTC.")
    pool = models.CharField(max_length=64)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="schedules")
    is_on = models.BooleanField(default=True)
    catch_up = models.CharField(max_length=4, choices=CatchUp.choices, default=CatchUp.SKIP)
    hours = models.PositiveSmallIntegerField(default=6, help_text="A night that has not ended by then is told.")
    since = models.DateTimeField(help_text="Due times before this don't count.")

    class Meta:
        ordering = ("title", "pk")
        constraints = (
            models.CheckConstraint(name="schedule_has_a_day", condition=Q(days__len__gt=0)),
            models.CheckConstraint(name="schedule_catch_up_is_known", condition=Q(catch_up__in=CatchUp.values)),
        )

    def __str__(self) -> str:
        return f"{self.title}, {self.when}"

    def get_absolute_url(self) -> str:
        return f"{reverse('schedules:list')}#schedule-{self.pk}"

    @property
    def when(self) -> str:
        return f"{timetable.in_words(self.days)} at {self.at:%H:%M} UTC"

    def next_due(self, now: datetime) -> datetime:
        return timetable.next_due(self.days, self.at, max(now, self.since))


class Night(models.Model):
    """One due time of a schedule: the experiment that was queued for it, or why there is none."""

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="nights")
    due_at = models.DateTimeField()
    experiment = models.OneToOneField(Experiment, on_delete=models.SET_NULL, null=True, related_name="night")
    left_out = models.TextField(blank=True, help_text="One sentence: why nothing was queued.")

    class Meta:
        ordering = ("-due_at",)
        constraints = (
            # two beats, two workers, a restart at the due minute: whoever comes second finds the night there
            models.UniqueConstraint(fields=("schedule", "due_at"), name="night_once_for_each_due_time"),
        )

    def __str__(self) -> str:
        return f"{self.schedule} on {self.due_at:%Y-%m-%d}"
