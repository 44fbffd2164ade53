"""One attempt at an experiment: write its inputs, watch the program, store what came back."""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection
from pydantic import ValidationError

from bench_worker.result import Result
from webapp.experiments import launch, machines, queue
from webapp.experiments.ingest import ingest
from webapp.experiments.models import Experiment
from webapp.traces.store import trace_files

SHUTDOWN = "shutdown"
RESULT = "result.json"

log = logging.getLogger(__name__)


def perform(row: Experiment, shutting_down: Callable[[], bool]) -> None:
    """Carry a claimed experiment to an end, or back into the queue when ``shutting_down`` says so."""
    fence = queue.fence_of(row)
    try:
        with tempfile.TemporaryDirectory(prefix=f"moescope-{row.pk}-") as name:
            _perform(row, fence, Path(name), shutting_down)
    except Exception as error:  # whatever it was, trying again would end the same way; Celery logs it
        queue.fail(fence, f"The worker could not carry it out: {error}")
        raise


def _perform(row: Experiment, fence: queue.Fence, directory: Path, shutting_down: Callable[[], bool]) -> None:
    command = write_inputs(row, directory)
    limit_s = row.document["measure"]["max_seconds"] + launch.GRACE_S
    beat = _Beat(row, shutting_down)
    ended = launch.watch(command, directory=settings.BASE_DIR, limit_s=limit_s, beat=beat)
    beat.write(ended.report)
    last_output = ended.report.last_output

    if ended.stopped == queue.Order.LOST:
        log.warning("Experiment %s: attempt %s was given up for lost; its result is thrown away", *fence)
    elif ended.stopped == SHUTDOWN:
        queue.give_back(fence)
    elif ended.stopped == queue.Order.CANCEL:
        queue.cancel(fence, last_output)
    elif failure := launch.why(ended, limit_s):
        queue.fail(fence, failure, last_output)
    elif queue.begin_ingest(fence):
        try:
            measured = Result.model_validate_json((directory / RESULT).read_bytes())
        except (OSError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            queue.fail(fence, f"The measuring program ended well but left no whole result: {reason}", last_output)
        else:
            ingest(fence, measured, machines.register_this(measured.environment, row.pool))


def write_inputs(row: Experiment, directory: Path) -> list[str]:
    """Put the experiment, and its trace where that is an imported one, into ``directory``; the command that runs it."""
    file, result, traces = directory / "experiment.json", directory / RESULT, directory / "traces"
    file.write_text(json.dumps(row.document))
    traces.mkdir()
    trace_files(row.document["base"]["workload"]["trace"], traces)
    return [*launch.PROGRAM, "run", str(file), "--out", str(result), "--traces", str(traces), "--stop-on-eof"]


class _Beat:
    """Writes the report to the row and answers whether to stop. A database that is away for a moment is waited for."""

    def __init__(self, row: Experiment, shutting_down: Callable[[], bool]) -> None:
        self.fence, self.pool = queue.fence_of(row), row.pool
        self.shutting_down = shutting_down
        self.machine_is_known = row.machine is not None
        self.steps: dict[str, float] = {}
        self.runs_written = 0

    def __call__(self, report: launch.Report) -> str | None:
        if self.shutting_down():
            return SHUTDOWN
        order = self.write(report)
        return None if order is queue.Order.GO_ON else order

    def write(self, report: launch.Report) -> queue.Order:
        progress = self._with_steps(report.progress)
        news = report.runs if len(report.runs) != self.runs_written else None
        try:
            order = queue.beat(self.fence, progress, news)
            self._tell_the_machine()
        except (OperationalError, InterfaceError) as error:
            log.warning("Heartbeat of experiment %s not written: %s", self.fence.experiment, error)
            connection.close()
            return queue.Order.GO_ON
        self.runs_written = len(report.runs)
        return order

    def _with_steps(self, progress: dict[str, Any]) -> dict[str, Any]:
        """The program's event and, since its first step, ``steps``: how far the steps are, also while the next corner
        is prepared, and since when they run."""
        if progress.get("phase") == "measure":
            since = self.steps.get("since", time.time())
            self.steps = {"done": progress["done"], "total": progress["total"], "since": since}
        return {**progress, "steps": self.steps} if self.steps else progress

    def _tell_the_machine(self) -> None:
        """A worker that has just started takes its first experiment before its machine is registered."""
        if self.machine_is_known:
            return
        machine = machines.of_this_worker(self.pool)
        if machine is not None:
            queue.held(self.fence).update(machine=machine)
            self.machine_is_known = True
