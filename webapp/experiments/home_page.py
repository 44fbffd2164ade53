"""What the home page reads from the database, in a constant number of queries; `present` makes of it what is shown."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from django.db.models import Count
from django.utils import timezone

from webapp.experiments import present, queue
from webapp.experiments.machine_page import RECENT, machine_lines
from webapp.experiments.models import HELD, Experiment, State

#: A machine that has been silent for longer is left to the machines' own page.
FORGOTTEN_AFTER = timedelta(days=1)


class Running(NamedTuple):
    """An experiment that a worker holds. ``late``: its heartbeat is overdue."""

    row: Experiment
    now: present.Now
    late: bool


def home() -> dict[str, Any]:
    """Running, waiting and recently ended experiments, and the machines."""
    listed = Experiment.objects.visible().listed()
    now = timezone.now()
    running = [
        Running(row, present.now(row.progress, now), queue.is_late(row, now))
        for row in listed.filter(state__in=HELD).order_by("started_at", "pk")
    ]
    queued = Experiment.objects.visible().filter(state=State.QUEUED)
    waiting = dict(queued.order_by("pool").values_list("pool").annotate(Count("pk")))
    known = [
        line
        for line in machine_lines([held.row for held in running], now)
        if now - line.machine.last_seen < FORGOTTEN_AFTER
    ]
    served = {line.machine.pool for line in known if not line.silent}
    return {
        "running": running,
        "waiting": listed.filter(state=State.QUEUED).order_by("queued_at", "id")[:RECENT],
        "num_waiting": sum(waiting.values()),
        "unserved": {pool: number for pool, number in waiting.items() if pool not in served},
        "recent": listed.filter(finished_at__isnull=False).order_by("-finished_at")[:RECENT],
        "machines": known,
    }
