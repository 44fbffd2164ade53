"""What the API answers with. The experiment that it takes is `bench_worker.spec.Experiment` itself."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.db.models import Prefetch, QuerySet
from django.utils import timezone
from pydantic import BaseModel, ConfigDict, Field

from webapp.experiments import present
from webapp.experiments.fields import in_order
from webapp.experiments.models import Experiment, Kind, Machine, Run
from webapp.experiments.models import State as States
from webapp.history.models import Change, Point, Series
from webapp.history.series import DRAWN

State = Literal["queued", "running", "ingesting", "done", "failed", "canceled"]


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


class RunSummary(BaseModel):
    """One variant under one condition, without its arrays over steps; those are in the result."""

    id: int
    experiment: int
    variant: str
    condition: str
    status: str
    summary: dict[str, Any] | None = Field(description="As in the result: percentiles and shares.")
    origins: dict[str, Any]
    notes: list[Any]

    @classmethod
    def of(cls, run: Run) -> RunSummary:
        values = {name: getattr(run, name) for name in cls.model_fields.keys() - {"experiment"}}
        return cls(**values, experiment=run.experiment_id)


class MachineState(BaseModel):
    """One state of one measuring computer: its hardware, software and settings."""

    id: int
    name: str
    host: str
    pool: str
    fingerprint: str
    details: dict[str, Any]
    first_seen: datetime
    last_seen: datetime

    @classmethod
    def of(cls, machine: Machine) -> MachineState:
        return cls(**{name: getattr(machine, name) for name in cls.model_fields})


class NightValue(BaseModel):
    at: datetime = Field(description="When the run was due, or ended where no schedule asked for it.")
    value: float
    run: int
    experiment: int


class SeriesChange(BaseModel):
    """A change of level."""

    since: datetime = Field(description="The first night of the new level.")
    ratio: float = Field(description="New level / old level; above 1 is slower.")
    p_value: float
    confirmed_at: datetime | None = Field(description="When a further night bore it out.")
    state: str = Field(description="What the team says of it.")


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
            changes=[
                SeriesChange(since=one.first.at, **{name: getattr(one, name) for name in _OF_A_CHANGE})
                for one in series.changes.all()
            ],
            url=series.get_absolute_url(),
        )


_OF_A_CHANGE = ("ratio", "p_value", "confirmed_at", "state")


def with_nights(rows: QuerySet[Series]) -> QuerySet[Series]:
    """``rows`` with what `SeriesHistory` tells of them, in three queries. Deleted experiments are left out."""
    points = Point.objects.filter(record__experiment__deleted_at=None).select_related("record")
    latest = points.order_by("-record__at", "-record")[:DRAWN]
    changes = Change.objects.select_related("first").order_by("-first__at")
    return rows.select_related("group").prefetch_related(
        Prefetch("points", latest, to_attr="latest"), Prefetch("changes", changes)
    )


class Page(BaseModel):
    """Part of a list. ``next`` and ``previous`` are whole addresses."""

    next: str | None
    previous: str | None


class ExperimentPage(Page):
    results: list[ExperimentState]


class RunPage(Page):
    results: list[RunSummary]


class MachinePage(Page):
    results: list[MachineState]


class SeriesPage(Page):
    results: list[SeriesHistory]


class Description(BaseModel):
    """New words for an experiment. What is left out stays."""

    model_config = ConfigDict(extra="forbid", strict=True)

    title: str | None = Field(default=None, description="One line, at most 200 characters.")
    tags: list[str] | None = None
    notes: str | None = Field(default=None, description="At most 10,000 characters.")
