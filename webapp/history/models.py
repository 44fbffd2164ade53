"""What runs each night, what its numbers came to over time, and where they changed."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.urls import reverse

from webapp.experiments.models import Experiment, Run
from webapp.history import timetable
from webapp.history.detection import Opinion


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
    measures_again = models.BooleanField(default=True, help_text="At once, a night that looks slower; see `reruns`.")
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

    @property
    def owner_trouble(self) -> str:
        """Why nothing may be queued in its owner's name; empty where it may."""
        if self.owner is None:
            return "Its owner is gone"
        if not self.owner.is_active:
            return f"Its owner {self.owner} is disabled"
        return "" if self.owner.may_run else f"Its owner {self.owner} may only read"

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


class Group(models.Model):
    """Measurements that may be compared over time: one experiment, but for its title and what else varies, on one class
    of machine. See `series`."""

    fingerprint = models.CharField(max_length=16)
    machine = models.CharField(max_length=200, help_text="A machine's name, which those of a class share.")
    title = models.CharField(max_length=200, help_text="Of the latest experiment.")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("fingerprint", "machine"), name="group_once"),)

    def __str__(self) -> str:
        return f"{self.title} on {self.machine}"


class Record(models.Model):
    """An experiment that ended, as a night of its group."""

    group = models.ForeignKey(Group, on_delete=models.CASCADE, related_name="records")
    experiment = models.OneToOneField(Experiment, on_delete=models.CASCADE, related_name="record")
    at = models.DateTimeField(help_text="When it was due, or ended where no schedule asked for it.")
    versions = models.JSONField(default=dict, help_text="Labels, commit and software by name; see `versions.known`.")
    is_counted = models.BooleanField(default=True, help_text="False since an analysis saw that it is deleted.")

    class Meta:
        ordering = ("at", "pk")
        indexes = (
            models.Index(fields=("group", "at"), name="record_of_group"),
            models.Index(fields=("experiment",), condition=Q(is_counted=False), name="record_not_counted"),
        )

    def __str__(self) -> str:
        return f"{self.group} at {self.at:%Y-%m-%d %H:%M}"


class Rerun(models.Model):
    """A night that looked slower, measured once more: once, whatever restarts, since its record is unique. It is no
    night of its own, it only says what it thinks of the suspicion. See `reruns`."""

    record = models.OneToOneField(Record, on_delete=models.SET_NULL, null=True, related_name="rerun")
    experiment = models.OneToOneField(Experiment, on_delete=models.SET_NULL, null=True, related_name="rerun")
    judged_at = models.DateTimeField(null=True, help_text="When it was heard, or given up.")
    measured_at = models.DateTimeField(null=True, help_text="When it ended, where it has something to say.")
    silent_because = models.TextField(blank=True, help_text="One sentence: why nothing came of it.")
    versions = models.JSONField(default=dict, help_text="What it measured; as those of a `Record`.")

    class Meta:
        constraints = (
            models.CheckConstraint(
                name="rerun_is_silent_for_a_reason", condition=Q(silent_because="") | Q(judged_at__isnull=False)
            ),
        )

    def __str__(self) -> str:
        return f"re-run of {self.record}"


class Series(models.Model):
    """One number of a group over time. What lists show is kept here, written by each analysis."""

    group = models.ForeignKey(Group, on_delete=models.CASCADE, related_name="series")
    variant = models.TextField()
    condition = models.TextField()
    metric = models.CharField(max_length=40, help_text="A key of `metrics.numbers`.")
    recent = ArrayField(models.FloatField(), default=list, help_text="The latest values, the last one last.")
    nights = models.PositiveIntegerField(default=0)
    week = ArrayField(models.FloatField(), default=list, help_text="Ratio, low, high; see `trend.week_change`.")

    class Meta:
        ordering = ("group", "condition", "variant", "metric")
        constraints = (models.UniqueConstraint(fields=("group", "variant", "condition", "metric"), name="series_once"),)

    def __str__(self) -> str:
        return f"{self.variant} at {self.condition}: {self.metric}"

    def get_absolute_url(self) -> str:
        return reverse("history:series", args=[self.pk])


class Point(models.Model):
    """One night of a series."""

    series = models.ForeignKey(Series, on_delete=models.CASCADE, related_name="points")
    record = models.ForeignKey(Record, on_delete=models.CASCADE, related_name="points")
    run = models.ForeignKey(Run, on_delete=models.CASCADE)
    value = models.FloatField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("series", "record"), name="point_once_a_night"),)

    def __str__(self) -> str:
        return f"{self.value:g}"


class Thinning(models.Model):
    """One night's thinning of old steps, and how far it came. See `retention`."""

    night = models.DateField(unique=True)
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    experiments = models.PositiveIntegerField(default=0)
    runs = models.PositiveIntegerField(default=0)
    num_bytes = models.PositiveBigIntegerField(default=0)

    def __str__(self) -> str:
        return f"thinning of {self.night:%Y-%m-%d}"


class Triage(models.TextChoices):
    """What the team says about a change."""

    NEW = "new"
    ACKNOWLEDGED = "acknowledged"
    FIXED = "fixed"
    EXPECTED = "expected"
    NOISE = "noise"


#: A change that a person closed: lists count its series as steady.
CLOSED = (Triage.FIXED, Triage.EXPECTED, Triage.NOISE)


class Change(models.Model):
    """A series changed its level. Analyses find it anew each night; what a person said of it they leave alone."""

    series = models.ForeignKey(Series, on_delete=models.CASCADE, related_name="changes")
    first = models.ForeignKey(Record, on_delete=models.CASCADE, related_name="+", help_text="Of the new level.")
    last_before = models.ForeignKey(Record, on_delete=models.CASCADE, related_name="+", help_text="Of the old level.")
    ratio = models.FloatField(help_text="New level / old level.")
    p_value = models.FloatField()
    confirmed_at = models.DateTimeField(null=True, help_text="When a further night or a re-run bore it out.")
    suspected = models.ForeignKey(
        Record, on_delete=models.SET_NULL, null=True, related_name="suspicions",
        help_text="The last night, where this is slower since then and not confirmed.",
    )  # fmt: skip
    rerun = models.ForeignKey(Rerun, on_delete=models.SET_NULL, null=True, related_name="changes")
    opinion = models.CharField(max_length=12, blank=True, choices=[(word.value, word.value) for word in Opinion],
                               help_text="What its latest re-run says of it.")  # fmt: skip
    told_at = models.DateTimeField(null=True, help_text="When a digest told it.")
    state = models.CharField(max_length=12, choices=Triage.choices, default=Triage.NEW)
    note = models.TextField(blank=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True)
    decided_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-first__at", "pk")
        constraints = (models.CheckConstraint(name="change_state_is_known", condition=Q(state__in=Triage.values)),)

    def __str__(self) -> str:
        return f"{self.series} since {self.first.at:%Y-%m-%d}"

    @property
    def is_slower(self) -> bool:
        return self.ratio > 1


class Digest(models.Model):
    """What the team is told of one night of a group, in one message."""

    group = models.ForeignKey(Group, on_delete=models.CASCADE, related_name="digests")
    night = models.DateField(help_text="On which it was confirmed.")
    subject = models.CharField(max_length=300)
    text = models.TextField()
    facts = models.JSONField(help_text="The same for programs.")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("group", "night"), name="digest_once_a_night"),)

    def __str__(self) -> str:
        return self.subject


class Delivery(models.Model):
    """A digest on its way to one e-mail address or webhook, until it is there."""

    digest = models.ForeignKey(Digest, on_delete=models.CASCADE, related_name="deliveries")
    channel = models.CharField(max_length=500, help_text="An e-mail address, or a webhook as the settings name it.")
    tries = models.PositiveSmallIntegerField(default=0)
    next_try_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)
    failure = models.TextField(blank=True, help_text="One sentence: why the last try failed.")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("digest", "channel"), name="delivery_once_a_channel"),)
        indexes = (models.Index(fields=("next_try_at",), condition=Q(sent_at=None), name="delivery_due"),)

    def __str__(self) -> str:
        return f"{self.digest} to {self.shown}"

    @property
    def shown(self) -> str:
        """Without the path of a webhook, which is a secret."""
        return urlsplit(self.channel).hostname or self.channel
