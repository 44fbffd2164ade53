"""Schedules for tests."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Any

from tests.webapp.experiments import make
from webapp.history.models import Schedule

#: A Monday, long before any clock of a test.
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


def schedule(owner: Any, **changes: Any) -> Schedule:
    """Every day at 02:00 in the pool ``default``."""
    usual = {
        "title": "Fusion",
        "document": make.experiment().document(),
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
