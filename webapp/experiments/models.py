"""What the team asked for and what came back. Every change of state stands in `queue` and `ingest`."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import Func, Q
from django.urls import reverse

from webapp.traces.models import Recording, Trace


def clock() -> Func:
    """The time of day by the database's clock, for what one computer writes and another compares."""
    return Func(function="clock_timestamp", output_field=models.DateTimeField())


class Machine(models.Model):
    """One state of one measuring computer in one pool: its hardware, software and settings, by their fingerprint."""

    fingerprint = models.CharField(max_length=64)
    name = models.CharField(max_length=200)
    host = models.CharField(max_length=255, blank=True, help_text="Name of the computer whose worker registered it.")
    pool = models.CharField(max_length=64, blank=True)
    details = models.JSONField(default=dict)
    first_seen = models.DateTimeField(auto_now_add=True)
    last_seen = models.DateTimeField(help_text="When its worker last said that it lives, or left a result.")

    class Meta:
        indexes = (models.Index(fields=("pool", "host", "-last_seen"), name="machine_latest_of_pool"),)
        constraints = (models.UniqueConstraint(fields=("host", "pool", "fingerprint"), name="machine_one_row_a_state"),)

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("machines:detail", args=[self.pk])


class Pulse(models.Model):
    """When a part of the product that leaves no other trace last did its work."""

    part = models.CharField(max_length=20, unique=True)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return self.part


class Kind(models.TextChoices):
    """What is measured. All kinds share the queue and what happens to an attempt; see `jobs` for where they differ."""

    EXPERIMENT = "experiment"
    KERNELS = "kernels"  # the table of expert backends on one machine


class State(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    INGESTING = "ingesting"
    DONE = "done"
    FAILED = "failed"
    CANCELED = "canceled"


#: A worker holds the row: its heartbeat must stay fresh.
HELD = (State.RUNNING, State.INGESTING)
ENDED = (State.DONE, State.FAILED, State.CANCELED)


class ExperimentQuerySet(models.QuerySet["Experiment"]):
    def visible(self) -> ExperimentQuerySet:
        """Those that nobody deleted."""
        return self.filter(deleted_at=None)

    def listed(self) -> ExperimentQuerySet:
        """What a list shows, with ``num_runs``, without the documents that only the experiment's own page reads."""
        heavy = ("document", "plan", "result", "so_far", "last_output", "notes", "machine__details")
        num_runs = Func("plan", function="jsonb_array_length", output_field=models.IntegerField())
        return self.select_related("author", "machine").defer(*heavy).annotate(num_runs=num_runs)


class Experiment(models.Model):
    """One document on its way: ``queued -> running -> ingesting -> done | failed | canceled``."""

    kind = models.CharField(max_length=10, choices=Kind.choices, default=Kind.EXPERIMENT)
    title = models.CharField(max_length=200)
    document = models.JSONField(
        help_text="The experiment file, schema 1, with every default written out; of kernels, a `kernel_report.Asked`."
    )
    plan = models.JSONField(help_text="The runs it makes, in order: variant, condition, layer_scale.")
    state = models.CharField(max_length=10, choices=State.choices, default=State.QUEUED)
    pool = models.CharField(max_length=64)
    author = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True)
    model_names = ArrayField(models.CharField(max_length=100), default=list, help_text="Presets that it measures.")
    likeness = models.CharField(max_length=16, blank=True, help_text="The same for those that take as long a run.")
    notes = models.TextField(blank=True)
    tags = ArrayField(models.CharField(max_length=40), default=list, blank=True)
    labels = models.JSONField(default=dict, blank=True, help_text="Words by key; see `labels`.")
    deleted_at = models.DateTimeField(null=True, blank=True, help_text="Hidden since; see `upkeep`.")
    thinned_at = models.DateTimeField(null=True, help_text="Since then it has summaries, but no steps; see `thinning`.")
    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, null=True, blank=True)
    trace = models.ForeignKey(
        Trace, on_delete=models.PROTECT, null=True, blank=True, related_name="experiments",
        help_text="The imported trace that it reads; null for a built-in one.",
    )  # fmt: skip
    recordings = models.ManyToManyField(Recording, blank=True, related_name="experiments")

    attempt = models.PositiveSmallIntegerField(default=0, help_text="How often a worker took it; fences its writes.")
    handed_back = models.PositiveSmallIntegerField(
        default=0, help_text="Attempts that a worker ended in order, as when it was shut down; they count for nothing."
    )
    cancel_requested = models.BooleanField(default=False)
    queued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True)

    progress = models.JSONField(default=dict, help_text="The worker's last progress event.")
    so_far = models.JSONField(default=list, help_text="Runs finished before the whole result is in.")
    answer = models.TextField(blank=True, help_text="One sentence: what came out.")
    failure = models.TextField(blank=True, help_text="One sentence: why it failed.")
    last_output = models.TextField(blank=True, help_text="The worker's last lines.")
    result = models.JSONField(
        null=True, blank=True, help_text="The result document without its runs; of kernels, a `kernel_report.Table`."
    )

    objects = ExperimentQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        indexes = (
            models.Index(fields=("pool", "queued_at", "id"), condition=Q(state="queued"), name="experiment_queue"),
            models.Index(
                fields=("heartbeat_at",), condition=Q(state__in=("running", "ingesting")), name="experiment_held"
            ),
            models.Index(fields=("-finished_at",), name="experiment_recent"),
            models.Index(fields=("likeness", "pool", "-finished_at"), name="experiment_likeness"),
            models.Index(fields=("deleted_at",), condition=Q(deleted_at__isnull=False), name="experiment_deleted"),
            models.Index(
                fields=("machine", "-finished_at"), condition=Q(kind="kernels", state="done"), name="experiment_kernels"
            ),
            GinIndex(fields=("model_names",), name="experiment_models"),
            GinIndex(fields=("tags",), name="experiment_tags"),
        )
        constraints = (
            models.CheckConstraint(name="experiment_kind_is_known", condition=Q(kind__in=Kind.values)),
            models.CheckConstraint(name="experiment_state_is_known", condition=Q(state__in=State.values)),
            models.CheckConstraint(
                name="experiment_has_an_end_iff_it_ended",
                condition=Q(state__in=ENDED, finished_at__isnull=False)
                | (~Q(state__in=ENDED) & Q(finished_at__isnull=True)),
            ),
            models.CheckConstraint(
                name="experiment_held_has_a_heartbeat",
                condition=~Q(state__in=HELD) | Q(heartbeat_at__isnull=False, started_at__isnull=False),
            ),
            models.CheckConstraint(name="experiment_failed_says_why", condition=~Q(state="failed") | ~Q(failure="")),
        )

    def __str__(self) -> str:
        return f"{self.title} (#{self.pk})"

    def get_absolute_url(self) -> str:
        return reverse("experiments:detail", args=[self.pk])

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED


class Run(models.Model):
    """One variant under one condition. Its arrays over steps lie in `StageSeries`."""

    experiment = models.ForeignKey(Experiment, on_delete=models.CASCADE, related_name="runs")
    attempt = models.PositiveSmallIntegerField()
    position = models.PositiveSmallIntegerField(help_text="Place in the result file.")
    variant = models.TextField()
    condition = models.TextField()
    status = models.CharField(max_length=20)
    spec = models.JSONField()
    check_result = models.JSONField()
    fit = models.JSONField()
    scale = models.JSONField()
    clock = models.JSONField(null=True)
    summary = models.JSONField(null=True)
    origins = models.JSONField(default=dict)
    notes = models.JSONField(default=list)
    requests = models.JSONField(null=True)
    expert_assignments = models.JSONField(default=list)
    routing = models.JSONField(null=True)
    noise = models.JSONField(null=True)
    choices = models.JSONField(default=list)
    refused = models.JSONField(default=dict)
    graphs = models.JSONField(null=True)
    exchange = models.JSONField(null=True)

    class Meta:
        ordering = ("experiment", "position")
        constraints = (
            models.UniqueConstraint(fields=("experiment", "position"), name="run_position_in_experiment"),
            models.UniqueConstraint(fields=("experiment", "variant", "condition"), name="run_variant_and_condition"),
        )

    def __str__(self) -> str:
        return f"{self.variant} at {self.condition}"


class StageSeries(models.Model):
    """One column over the steps of a run: a stage's time on one rank, or a count; see `ingest.flatten`."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="series")
    rank = models.PositiveIntegerField(null=True, help_text="Null for a column of the whole step.")
    stage = models.CharField(max_length=64)
    values = ArrayField(models.FloatField())

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("run", "rank", "stage"), nulls_distinct=False, name="stage_series_one_column_once"
            ),
        )

    def __str__(self) -> str:
        return self.stage if self.rank is None else f"{self.stage} on rank {self.rank}"
