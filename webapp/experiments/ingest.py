"""From a worker's result file to rows, in one transaction. Nothing of a result is in Postgres before all of it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.db import transaction
from django.db.models.functions import Now

from bench_worker import result
from bench_worker.kernel_report import Table
from webapp.experiments.answer import answer, answer_of_table
from webapp.experiments.models import Machine, Run, StageSeries, State
from webapp.experiments.queue import Fence, held

#: Columns of `result.Steps`, in order; kept with rank null.
STEP_COLUMNS = tuple(name for name in result.Steps.model_fields if name != "ranks")
#: Columns of `result.RankSteps` besides the stages' times, which go by the stage's own name.
RANK_COLUMNS = ("assignments", "rows", "idle_us")
#: Fields of `result.RankSteps` by domain, each a column ``<field>.<domain>``.
BY_DOMAIN = ("bytes", "group_bytes")


@dataclass(frozen=True)
class Column:
    """One column over the steps of a run: ``rank`` is None for the step as a whole."""

    rank: int | None
    stage: str
    values: list[float]


def flatten(steps: result.Steps) -> list[Column]:
    """The columns that ``steps`` has: stages by their names, byte counts as ``bytes.<domain>`` or
    ``group_bytes.<domain>``."""
    columns = [
        Column(None, name, list(values)) for name in STEP_COLUMNS if (values := getattr(steps, name)) is not None
    ]
    for rank in steps.ranks:
        columns += [Column(rank.rank, name, list(getattr(rank, name))) for name in RANK_COLUMNS]
        columns += [Column(rank.rank, stage, list(times)) for stage, times in rank.stages_us.items()]
        for name in BY_DOMAIN:
            columns += [Column(rank.rank, f"{name}.{domain}", count) for domain, count in getattr(rank, name).items()]
    return columns


def unflatten(columns: Iterable[Column]) -> result.Steps:
    """The inverse of `flatten`. Whole numbers come back as such though a series holds floats."""
    whole: dict[str, list[float]] = {}
    ranks: dict[int, dict[str, object]] = {}
    for column in columns:
        if column.rank is None:
            whole[column.stage] = column.values
            continue
        by_domain: dict[str, dict[str, list[float]]] = {name: {} for name in BY_DOMAIN}
        rank = ranks.setdefault(column.rank, {"rank": column.rank, "stages_us": {}, **by_domain})
        field, _, domain = column.stage.partition(".")
        if column.stage in RANK_COLUMNS:
            rank[column.stage] = column.values
        elif field in BY_DOMAIN:
            rank[field][domain] = column.values  # type: ignore[index]
        else:
            rank["stages_us"][column.stage] = column.values  # type: ignore[index]
    return result.Steps.model_validate({**whole, "ranks": list(ranks.values())})


def ingest(fence: Fence, measured: result.Result | Table, machine: Machine | None = None) -> bool:
    """Store the result and end the experiment as done. False: the attempt no longer holds the row, nothing changed."""
    head = measured.model_dump(mode="json", by_alias=True, exclude={"runs"})
    runs = [] if isinstance(measured, Table) else measured.runs
    with transaction.atomic():
        ended = held(fence, State.INGESTING).update(
            state=State.DONE,
            finished_at=Now(),
            machine=machine,
            result=head,
            answer=answer_of_table(measured) if isinstance(measured, Table) else answer(runs),
            so_far=[],
        )
        if not ended:
            return False
        rows = Run.objects.bulk_create(_row(fence, position, run) for position, run in enumerate(runs))
        StageSeries.objects.bulk_create(
            StageSeries(run=row, rank=column.rank, stage=column.stage, values=column.values)
            for row, run in zip(rows, runs, strict=True)
            if run.steps is not None
            for column in flatten(run.steps)
        )
    return True


def _row(fence: Fence, position: int, run: result.Run) -> Run:
    document = run.model_dump(mode="json", exclude={"steps"})
    return Run(
        experiment_id=fence.experiment,
        attempt=fence.attempt,
        position=position,
        check_result=document.pop("check"),
        **document,
    )
