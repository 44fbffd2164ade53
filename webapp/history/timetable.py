"""When a schedule is due (pure). Everything is in UTC, so no change to or from summer time skips or doubles a night."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, date, datetime, time, timedelta

#: As `datetime.weekday` counts them.
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
WEEK = 7


def last_due(days: Collection[int], at: time, now: datetime) -> datetime:
    """The latest due time that is not after ``now``. ``days``: at least one of 0 (Monday) to 6."""
    return next(due for back in range(WEEK + 1) if (due := _due(days, at, now.date(), -back)) and due <= now)


def next_due(days: Collection[int], at: time, now: datetime) -> datetime:
    """The first due time after ``now``."""
    return next(due for ahead in range(WEEK + 1) if (due := _due(days, at, now.date(), ahead)) and due > now)


def in_words(days: Collection[int]) -> str:
    """``every day``, ``Mon to Fri`` or the days by name."""
    chosen = sorted(days)
    if len(chosen) == WEEK:
        return "every day"
    if len(chosen) > 2 and chosen == list(range(chosen[0], chosen[-1] + 1)):
        return f"{DAYS[chosen[0]]} to {DAYS[chosen[-1]]}"
    return ", ".join(DAYS[day] for day in chosen)


def _due(days: Collection[int], at: time, today: date, days_ahead: int) -> datetime | None:
    day = today + timedelta(days=days_ahead)
    return datetime.combine(day, at, UTC) if day.weekday() in days else None
