"""One attempt at an experiment: write its inputs, watch the program, store what came back."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from django.conf import settings
from django.db import connection, transaction
from pydantic import ValidationError

from bench_worker import host_memory
from bench_worker.result import Result
from webapp.experiments import attempts, launch, machines, queue
from webapp.experiments.ingest import ingest
from webapp.experiments.models import Experiment
from webapp.guard import Limits
from webapp.traces.recording_store import recording_files
from webapp.traces.store import trace_files

SHUTDOWN = "shutdown"
#: Left to others on this machine when a measurement may have the rest of its memory.
RESERVE_BYTES = 256_000_000
#: Between two tries to reach a database that is away.
RETRY_S = 0.5

T = TypeVar("T")
log = logging.getLogger(__name__)


def perform_next(pool: str, shutting_down: Callable[[], bool]) -> bool:
    """Carry out the oldest queued experiment of ``pool``. False: nothing waits.

    The attempt has its directory before its claim counts, so `recover` finds it however this process ends.
    """
    with ExitStack() as held:
        with transaction.atomic():
            row = queue.claim(pool, machines.of_this_worker(pool))
            if row is None:
                return False
            directory = held.enter_context(attempts.begun(queue.fence_of(row)))
        perform(row, directory, shutting_down)
    return True


def perform(row: Experiment, directory: Path, shutting_down: Callable[[], bool]) -> None:
    """Carry a claimed experiment to an end, or back into the queue when ``shutting_down`` says so.

    A database that stays away longer than a heartbeat may be missing ends the attempt with its error; what it left
    in ``directory`` is taken up by `recover` afterwards.
    """
    fence = queue.fence_of(row)
    with answerable(fence):
        _perform(row, fence, directory, shutting_down)


@contextmanager
def answerable(fence: queue.Fence) -> Iterator[None]:
    """An error of ours fails the experiment, since trying again would end the same way; a database away does not."""
    try:
        yield
    except queue.AWAY:
        raise
    except Exception as error:
        sentence = f"The worker could not carry it out: {error}"
        patiently(lambda: queue.fail(fence, sentence))
        raise


def _perform(row: Experiment, fence: queue.Fence, directory: Path, shutting_down: Callable[[], bool]) -> None:
    command = patiently(lambda: write_inputs(row, directory))
    limits = Limits(row.document["measure"]["max_seconds"] + launch.GRACE_S, memory_limit())
    beat = _Beat(row, directory, shutting_down)
    ended = launch.watch(command, limits=limits, mark=str(directory), beat=beat, beat_s=launch.BEAT_S)
    beat.write(ended.report)
    last_output = ended.report.last_output

    if ended.reason == queue.Order.LOST:
        log.warning("Experiment %s: attempt %s was given up for lost; its result is thrown away", *fence)
    elif ended.reason == SHUTDOWN:
        patiently(lambda: queue.give_back(fence))
    elif ended.reason == queue.Order.CANCEL:
        patiently(lambda: queue.cancel(fence, last_output))
    elif failure := launch.why(ended.end, ended.report, limits):
        patiently(lambda: queue.fail(fence, failure, last_output))
    else:
        patiently(lambda: store(fence, row.pool, directory / attempts.RESULT, last_output))


def store(fence: queue.Fence, pool: str, file: Path, last_output: str) -> None:
    """Store the result in ``file`` as long as the attempt holds its row; however often this is called, once."""
    if not queue.begin_ingest(fence):
        return
    try:
        measured = Result.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        queue.fail(fence, f"The measuring program ended well but left no whole result: {reason}", last_output)
    else:
        ingest(fence, measured, machines.register_this(measured.environment, pool))


def write_inputs(row: Experiment, directory: Path) -> list[str]:
    """Put the experiment, and what it names of the library, into ``directory``; the command that runs it."""
    file, result = directory / attempts.EXPERIMENT, directory / attempts.RESULT
    traces, recordings = directory / attempts.TRACES, directory / attempts.RECORDINGS
    file.write_text(json.dumps(row.document))
    for folder in (traces, recordings):
        folder.mkdir(exist_ok=True)
    workload, conditions = row.document["base"]["workload"], row.document["conditions"]
    most = max([workload["requests"], *(condition["requests"] or 0 for condition in conditions)])
    trace_files(workload["trace"], traces, most)
    recording_files(row.recordings.defer("counts"), recordings)
    library = ["--traces", str(traces), "--recordings", str(recordings)]
    return [*launch.PROGRAM, "run", str(file), "--out", str(result), *library, "--stop-on-eof"]


def memory_limit() -> int:
    """Bytes that a measurement may hold: ``MOESCOPE_MEMORY_GB``, or what is free now but for a reserve."""
    return int(settings.MOESCOPE_MEMORY_GB * 1e9) or max(0, host_memory.available_bytes() - RESERVE_BYTES)


def patiently(change: Callable[[], T]) -> T:
    """Do a change in the database; while that is away, again and again until the row counts as silent.

    A change may be done twice: an answer can get lost after its transaction was committed.
    """
    give_up_at = time.monotonic() + queue.HEARTBEAT_TIMEOUT.total_seconds()
    while True:
        try:
            return change()
        except queue.AWAY as error:
            connection.close()
            if time.monotonic() > give_up_at:
                raise
            log.warning("The database is away, trying again: %s", error)
        time.sleep(RETRY_S)


class _Beat:
    """Writes the report to the row and answers whether to stop. A database that is away for a moment is waited for."""

    def __init__(self, row: Experiment, directory: Path, shutting_down: Callable[[], bool]) -> None:
        self.fence, self.pool = queue.fence_of(row), row.pool
        self.output = directory / attempts.OUTPUT
        self.shutting_down = shutting_down
        self.machine_is_known = row.machine is not None
        self.steps: dict[str, float] = {}
        self.runs_written, self.said = 0, ""

    def __call__(self, report: launch.Report) -> str | None:
        if report.last_output != self.said:
            self.output.write_text(said := report.last_output)  # should this process not live to tell
            self.said = said
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
        except queue.AWAY as error:
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
