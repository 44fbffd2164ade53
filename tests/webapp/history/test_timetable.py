"""Due times: in UTC, every one of them once."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webapp.history.timetable import in_words, last_due, next_due

EVERY_DAY = range(7)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "last", "following"),
    [
        ("2026-03-02 01:59:59", "2026-03-01 02:00", "2026-03-02 02:00"),
        ("2026-03-02 02:00:00", "2026-03-02 02:00", "2026-03-03 02:00"),
        ("2026-03-02 23:00:00", "2026-03-02 02:00", "2026-03-03 02:00"),
    ],
)
def test_the_due_minute_itself_is_due(now: str, last: str, following: str) -> None:
    assert last_due(EVERY_DAY, time(2), utc(now)) == utc(last)
    assert next_due(EVERY_DAY, time(2), utc(now)) == utc(following)


def test_only_the_days_that_were_ticked_count() -> None:
    """Monday the 2nd and Friday the 6th of March 2026."""
    now = utc("2026-03-05 12:00")
    assert last_due([0, 4], time(2), now) == utc("2026-03-02 02:00")
    assert next_due([0, 4], time(2), now) == utc("2026-03-06 02:00")


def test_a_day_a_week_before_its_time_was_due_a_week_ago() -> None:
    now = utc("2026-03-02 01:00")
    assert last_due([0], time(2), now) == utc("2026-02-23 02:00")
    assert next_due([0], time(2), utc("2026-03-02 03:00")) == utc("2026-03-09 02:00")


@pytest.mark.parametrize("change", ["2026-03-28 12:00", "2026-10-24 12:00"])
def test_a_change_of_the_clocks_neither_skips_nor_doubles_a_night(change: str) -> None:
    """Berlin's clocks jump over 02:30 in March and pass it twice in October."""
    now = utc(change).astimezone(ZoneInfo("Europe/Berlin"))
    due = []
    for _ in range(3):
        now = next_due(EVERY_DAY, time(1, 30), now.astimezone(UTC))
        due.append(now)
    assert [later - earlier for earlier, later in pairwise(due)] == [timedelta(days=1)] * 2


@given(
    st.sets(st.integers(0, 6), min_size=1),
    st.times(),
    st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC)),
)
def test_between_the_last_and_the_next_due_time_there_is_none(days: set[int], at: time, now: datetime) -> None:
    last, following = last_due(days, at, now), next_due(days, at, now)
    assert last <= now < following
    assert {last.weekday(), following.weekday()} <= days
    between = [last + timedelta(days=day) for day in range(1, (following - last).days)]
    assert not [day for day in between if day.weekday() in days]


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (range(7), "every day"),
        (range(5), "Mon to Fri"),
        ([0, 1], "Mon, Tue"),
        ([6, 0, 3], "Mon, Thu, Sun"),
        ([2], "Wed"),
    ],
)
def test_days_in_words(days: list[int], words: str) -> None:
    assert in_words(days) == words
