"""Schedules and their nights for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from typing import Any

import numpy as np
from django.db import connection

from tests.webapp.experiments import make, rows
from webapp.experiments.models import Experiment
from webapp.history import series
from webapp.history.models import Night, Schedule

#: One run a night: nine series.
SMALL = {"vary": None, "conditions": [{"concurrency": 1, "prompt_tokens": 16}]}
#: A Monday, long before any clock of a test.
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


def schedule(owner: Any, **changes: Any) -> Schedule:
    """Every day at 02:00 in the pool ``default``."""
    usual = {
        "title": "Fusion",
        "document": make.experiment(**SMALL).document(),
        "days": list(range(7)),
        "at": time(2),
        "pool": "default",
        "owner": owner,
        "since": MONDAY,
    }
    return Schedule.objects.create(**usual | changes)


def at(day: int, hour: int = 2, minute: int = 0, second: int = 0) -> datetime:
    """A time in March 2026, whose second day is a Monday."""
    return datetime(2026, 3, day, hour, minute, second, tzinfo=UTC)


def night(planned: Schedule, due_at: datetime, seed: int = 0, **slower: float) -> Night:
    """A night that ended well: numbers of `make.result` with 1% of noise, each metric of ``slower`` times its factor
    (``stage_experts`` for a stage's own name), not yet part of the history."""
    row = rows.done(planned.owner, **SMALL)
    disturb(row, [seed, int(due_at.timestamp())], **slower)
    return Night.objects.create(schedule=planned, due_at=due_at, experiment=row)


def disturb(row: Experiment, seed: list[int], **slower: float) -> None:
    """Give the numbers of a finished experiment 1% of noise, and each metric of ``slower`` its factor."""
    random = np.random.default_rng(seed)
    for run in row.runs.exclude(summary=None):
        for metric in ("step_us", "ttft_ms", "tpot_ms"):
            if run.summary[metric]:
                run.summary[metric]["p50"] *= slower.get(metric, 1) * random.lognormal(0, 0.01)
        for stage in run.summary["stage_us"]:
            run.summary["stage_us"][stage] *= slower.get(f"stage_{stage}", 1) * random.lognormal(0, 0.01)
        run.save()


def day(number: int) -> datetime:
    """02:00 so many days after `MONDAY`."""
    return MONDAY + timedelta(days=number, hours=2)


def nights(planned: Schedule, first: int, last: int, from_night: int = 10**6, **slower: float) -> None:
    """Nights ``first`` to ``last``, each taken up by the history; ``slower`` from ``from_night`` on."""
    for number in range(first, last + 1):
        night(planned, day(number), **(slower if number >= from_night else {}))
        series.follow(day(number) + timedelta(hours=1))


def at_once(duty: Callable[[], object]) -> None:
    """Do it in four threads at the same moment, as four workers would."""
    together = threading.Barrier(4)

    def work() -> None:
        together.wait()
        try:
            duty()
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
