"""The queue: every change of an experiment's state, each one conditional UPDATE.

The row is the truth; a Celery message is only a wake-up that may be lost, late or doubled. Whoever writes about a
running experiment carries its `Fence`, so a worker that was given up for lost can't write over its successor.
Every time of day that one process writes and another compares is the database's (`Now`), whatever their own clocks say.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from celery import current_app
from django.conf import settings
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerError

from bench_worker import models, spec
from bench_worker.kernel_report import Asked
from webapp.accounts import audit
from webapp.accounts.models import Deed, User
from webapp.experiments import labels as experiment_labels
from webapp.experiments.estimate import likeness
from webapp.experiments.models import HELD, Experiment, ExperimentQuerySet, Kind, Machine, State
from webapp.traces.store import held_recordings, held_trace

MAX_ATTEMPTS = 3
HEARTBEAT_TIMEOUT = timedelta(seconds=90)
#: A worker writes a heartbeat every second; one that is older deserves a word.
LATE_AFTER = timedelta(seconds=15)
WAKE_EXPIRES_S = 60
#: What a database that can't be reached for now raises.
AWAY = (OperationalError, InterfaceError)

log = logging.getLogger(__name__)


class Fence(NamedTuple):
    """One attempt at one experiment."""

    experiment: int
    attempt: int


class Order(StrEnum):
    """What a running attempt should do next."""

    GO_ON = "go on"
    CANCEL = "cancel"
    LOST = "lost"  # another attempt, or nobody, holds the row now: stop and write nothing


def enqueue(
    experiment: spec.Experiment,
    *,
    author: User | None,
    by: User | str | None = None,
    pool: str | None = None,
    tags: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
) -> Experiment:
    """Write a queued row and, once it is committed, wake a worker of its pool. ``by``: who queued it, for the audit
    list, where that is not its author."""
    with transaction.atomic():
        row = _enqueue(
            pool or settings.MOESCOPE_POOL,
            by or author,
            title=experiment.title,
            document=experiment.document(),
            plan=[planned(run) for run in experiment.runs()],
            model_names=list(dict.fromkeys(variant.model for _, variant in experiment.variants())),
            likeness=likeness(experiment),
            author=author,
            tags=list(tags),
            labels=dict(labels or {}),
            trace=held_trace(experiment.base.workload.trace),
        )
        row.recordings.set(held_recordings(run.spec.load.recording for run in experiment.runs()))
    return row


def enqueue_kernels(asked: Asked, *, author: User | None, pool: str, tags: Sequence[str] = ()) -> Experiment:
    """As `enqueue`, for the table of expert backends on a machine of ``pool``."""
    return _enqueue(
        pool,
        author,
        kind=Kind.KERNELS,
        title=asked.title,
        document=asked.model_dump(),
        plan=[],
        model_names=[asked.model],
        author=author,
        tags=list(tags),
    )


def _enqueue(pool: str, by: User | str | None, **fields: Any) -> Experiment:
    with transaction.atomic():
        row = Experiment.objects.create(pool=pool, queued_at=timezone.now(), **fields)
        if by is not None:
            audit.note(by, Deed.Action.QUEUED, row)
        transaction.on_commit(partial(wake, pool))
    return row


def planned(run: spec.PlannedRun) -> dict[str, Any]:
    """A run before it is measured. ``layer_scale``: MoE layers that each executed one stands for."""
    layers = models.load(run.spec.model).moe_layers
    return {"variant": run.variant, "condition": run.condition, "layer_scale": layers / run.spec.layers}


def wake(pool: str) -> None:
    """Tell one worker of ``pool`` that there is work. Without a broker the next sweep finds the row instead."""
    try:
        current_app.send_task("webapp.experiments.tasks.work", queue=pool, expires=WAKE_EXPIRES_S, retry=False)
    except BrokerError as error:
        log.warning("No wake-up for pool %s, the sweep will do it: %s", pool, error)


def claim(pool: str, machine: Machine | None = None) -> Experiment | None:
    """Take the oldest queued experiment of ``pool``, or none. Two callers never get the same one."""
    with transaction.atomic():
        waiting = Experiment.objects.filter(state=State.QUEUED, pool=pool).order_by("queued_at", "id")
        row = waiting.select_for_update(skip_locked=True).first()
        if row is None:
            return None
        Experiment.objects.filter(pk=row.pk, state=State.QUEUED).update(
            state=State.RUNNING,
            attempt=F("attempt") + 1,
            machine=machine,
            started_at=Now(),
            heartbeat_at=Now(),
            labels=labels_here() | row.labels,
        )
    row.refresh_from_db()
    return row


def labels_here() -> dict[str, str]:
    """Labels of all that is measured by this worker; those that came with an experiment win."""
    return experiment_labels.parse(settings.MOESCOPE_LABELS, "MOESCOPE_LABELS")


def fence_of(row: Experiment) -> Fence:
    return Fence(row.pk, row.attempt)


def held(fence: Fence, *states: State) -> ExperimentQuerySet:
    """The row as long as this attempt holds it; empty afterwards."""
    return Experiment.objects.filter(pk=fence.experiment, attempt=fence.attempt, state__in=states or HELD)


def beat(fence: Fence, progress: dict[str, Any], so_far: list[dict[str, Any]] | None = None) -> Order:
    """Write that the attempt lives and how far it is (``so_far`` where it changed); read what it should do."""
    changes: dict[str, Any] = {"heartbeat_at": Now(), "progress": progress}
    if so_far is not None:
        changes["so_far"] = so_far
    row = held(fence, State.RUNNING)
    if not row.update(**changes):
        return Order.LOST
    return Order.CANCEL if row.filter(cancel_requested=True).exists() else Order.GO_ON


def is_late(row: Experiment, now: datetime) -> bool:
    return row.heartbeat_at is not None and now - row.heartbeat_at > LATE_AFTER


def begin_ingest(fence: Fence) -> bool:
    """From measuring to storing, or on with storing. False: the attempt no longer holds the row."""
    return bool(held(fence).update(state=State.INGESTING, heartbeat_at=Now()))


def fail(fence: Fence, sentence: str, last_output: str = "") -> bool:
    return _end(held(fence), State.FAILED, failure=sentence, last_output=last_output)


def cancel(fence: Fence, last_output: str = "") -> bool:
    return _end(held(fence), State.CANCELED, last_output=last_output)


def request_cancel(pk: int) -> bool:
    """Cancel what waits; ask the worker of what runs. False: it has ended, or its result is being stored."""
    waiting = Experiment.objects.filter(pk=pk, state=State.QUEUED)
    running = Experiment.objects.filter(pk=pk, state=State.RUNNING)
    return _end(waiting, State.CANCELED) or bool(running.update(cancel_requested=True))


def give_back(fence: Fence) -> None:
    """The worker was told to stop before the attempt ended: queue it again, as if nobody had tried."""
    rows = held(fence)
    _end(rows.filter(cancel_requested=True), State.CANCELED)
    _requeue(rows, handed_back=F("handed_back") + 1)


def lose(fence: Fence, reason: str, last_output: str = "") -> None:
    """The worker ended without a word: queue its experiment again, unless that happens too often."""
    _queue_again(held(fence), reason, last_output)


def sweep(now: datetime | None = None) -> None:
    """Queue again what its worker lost, and wake a worker for every pool where something waits.

    Safe to run twice at once and at any time: every step is one conditional UPDATE or a message that says only
    "look".
    """
    silent = Experiment.objects.filter(state__in=HELD, heartbeat_at__lt=(now or Now()) - HEARTBEAT_TIMEOUT)
    _queue_again(silent, f"no heartbeat for {HEARTBEAT_TIMEOUT.seconds} s")
    wake_waiting()


def wake_waiting(pool: str | None = None) -> None:
    """One message to each pool, or to the given one, where something waits."""
    waiting = Experiment.objects.filter(state=State.QUEUED).order_by("pool")
    if pool is not None:
        waiting = waiting.filter(pool=pool)
    for name in waiting.values_list("pool", flat=True).distinct():
        wake(name)


def _queue_again(rows: ExperimentQuerySet, reason: str, last_output: str = "") -> None:
    _end(rows.filter(cancel_requested=True), State.CANCELED)
    _end(
        rows.filter(attempt__gte=MAX_ATTEMPTS + F("handed_back")),
        State.FAILED,
        failure=f"Its worker was lost {MAX_ATTEMPTS} times (the last time: {reason}), so it isn't tried again.",
        last_output=last_output,
    )
    _requeue(rows)


def _requeue(rows: ExperimentQuerySet, **changes: Any) -> None:
    rows.update(state=State.QUEUED, heartbeat_at=None, started_at=None, progress={}, so_far=[], **changes)


def _end(rows: ExperimentQuerySet, state: State, **changes: Any) -> bool:
    return bool(rows.update(state=state, finished_at=Now(), **changes))
