"""The result document, rebuilt from Postgres as the worker wrote it."""

from __future__ import annotations

import json

from bench_worker import result
from bench_worker.kernel_report import Table
from webapp.experiments import thinning
from webapp.experiments.fields import in_order
from webapp.experiments.ingest import Column, unflatten
from webapp.experiments.models import Experiment, Kind, Run


def result_of(experiment: Experiment) -> result.Result | Table | None:
    """Everything that came back, or None before the experiment is done. Raises `Thinned`."""
    if experiment.result is None:
        return None
    if experiment.kind == Kind.KERNELS:
        return Table.model_validate(experiment.result)
    _require_steps(experiment)
    runs = experiment.runs.order_by("position").prefetch_related("series")
    head = experiment.result | {"experiment": in_order(experiment.result["experiment"])}
    return result.Result.model_validate({**head, "runs": [_document(run) for run in runs]})


def run_of(run: Run) -> result.Run:
    """One run of a result. Raises `Thinned`."""
    _require_steps(run.experiment)
    return result.Run.model_validate(_document(run))


def _require_steps(experiment: Experiment) -> None:
    if sentence := thinning.in_words(experiment):
        raise thinning.Thinned(sentence)


def steps_of(run: Run) -> result.Steps | None:
    """The run's steps, or None where it gave none (its output was wrong), or they were thinned."""
    columns = [Column(row.rank, row.stage, row.values) for row in sorted(run.series.all(), key=lambda row: row.pk)]
    return unflatten(columns) if columns else None


def as_json(measured: result.Result | Table) -> bytes:
    """The file's bytes, in the schema's order of fields."""
    return measured.model_dump_json(by_alias=True, indent=1).encode()


def experiment_json(experiment: Experiment) -> bytes:
    """The experiment file's bytes, in the schema's order of fields."""
    return json.dumps(in_order(experiment.document), indent=1, ensure_ascii=False).encode()


def _document(run: Run) -> dict[str, object]:
    columns = (name for name in result.Run.model_fields if name not in ("steps", "check"))
    return {name: getattr(run, name) for name in columns} | {"check": run.check_result, "steps": steps_of(run)}
