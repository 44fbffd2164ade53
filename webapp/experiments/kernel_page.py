"""What the pages of a table of expert backends read from the database; `kernel_tables` makes of it what is shown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from bench_worker.kernel_report import Asked, Table, formats
from webapp.experiments import ceilings_chart, jobs, kernel_tables
from webapp.experiments.models import HELD, Experiment, Kind, Machine, State

#: Tables to choose from, calibrations that are shown, and results that are looked through for them.
TABLES, CALIBRATIONS, RESULTS = 30, 12, 60


def of_machine(machine: Machine, chosen: str = "", before: str = "") -> dict[str, Any]:
    """The tables and ceilings of a computer in its pool, in all of its states. ``chosen`` and ``before``: which table
    is shown, and which it is compared with; without them the latest, and the last like it."""
    visible = Experiment.objects.visible()
    here = visible.filter(machine__host=machine.host, machine__pool=machine.pool, state=State.DONE)
    latest_first = here.order_by("-finished_at")
    tables = list(latest_first.filter(kind=Kind.KERNELS).only("title", "document", "finished_at")[:TABLES])
    results = latest_first.filter(result__ceilings__isnull=False).values_list("kind", "result__ceilings")[:RESULTS]
    ceiling_names, calibrations = kernel_tables.over_time((found for _, found in results), CALIBRATIONS)
    with_table = kernel_tables.over_time(found for kind, found in results if kind == Kind.KERNELS)[1]
    context: dict[str, Any] = {
        "tables": tables,
        "pending": _pending(machine.pool),
        "calibrations": calibrations,
        "ceiling_names": ceiling_names,
        "ceiling_charts": ceilings_chart.charts(calibrations, {one.ceilings.measured_at for one in with_table}),
    }
    row = next((row for row in tables if str(row.pk) == chosen), tables[0] if tables else None)
    if row is None:
        return context
    others = [other for other in tables if other != row and other.document["model"] == row.document["model"]]
    other = next((other for other in others if str(other.pk) == before), _before(row, others))
    wanted = [each.pk for each in (row, other) if each is not None]
    found = {
        pk: Table.model_validate(result) for pk, result in visible.filter(pk__in=wanted).values_list("pk", "result")
    }
    context |= {"row": row, "others": others, "grid": kernel_tables.grid(found[row.pk])}
    if other is None:
        return context
    earlier, later = sorted((row, other), key=_ended)
    changes = kernel_tables.changes(found[earlier.pk], found[later.pk])
    return context | {"other": other, "earlier": earlier, "later": later, "changes": changes}


def _before(row: Experiment, others: Sequence[Experiment]) -> Experiment | None:
    """The last of ``others``, latest first, that was measured before ``row`` in the same number formats."""
    alike = (other for other in others if _formats(other) == _formats(row))
    return next((other for other in alike if _ended(other) < _ended(row)), None)


def _formats(row: Experiment) -> str:
    asked = Asked.model_validate(row.document)
    return formats(asked.dtype, asked.quantization)


def _ended(row: Experiment) -> datetime:
    assert row.finished_at is not None
    return row.finished_at


def _pending(pool: str) -> Experiment | None:
    """The table that waits or is measured in ``pool``."""
    rows = Experiment.objects.visible().filter(kind=Kind.KERNELS, pool=pool, state__in=(State.QUEUED, *HELD))
    return rows.order_by("queued_at").only("title", "state").first()


def of_row(row: Experiment) -> dict[str, Any]:
    """What was asked of a table and, once it is done, what came back."""
    asked = Asked.model_validate(row.document)
    return {
        "differs": asked.model_dump(include={"model", "dtype", "load", "quantization"})
        | {"tokens": ", ".join(f"{count:,}" for count in asked.tokens)},
        "command": " ".join(["python -m bench_worker", *jobs.kernels_command(row)]),
        "grid": kernel_tables.grid(Table.model_validate(row.result)) if row.state == State.DONE else None,
    }
