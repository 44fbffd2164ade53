"""What the API answers with. The experiment that it takes is `bench_worker.spec.Experiment` itself."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.utils import timezone
from pydantic import BaseModel, Field

from webapp.api.answers import Asked, Page
from webapp.experiments import present
from webapp.experiments.fields import in_order
from webapp.experiments.models import Experiment, Kind, Machine, Run
from webapp.experiments.models import State as States

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


class ExperimentPage(Page):
    results: list[ExperimentState]


class RunPage(Page):
    results: list[RunSummary]


class MachinePage(Page):
    results: list[MachineState]


class Description(Asked):
    """New words for an experiment. What is left out stays."""

    title: str | None = Field(default=None, description="One line, at most 200 characters.")
    tags: list[str] | None = None
    notes: str | None = Field(default=None, description="At most 10,000 characters.")
