"""What is wrong with the nights is said in a sentence."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.webapp.experiments import make
from tests.webapp.history.make_nights import at, schedule
from webapp.experiments import machines, queue
from webapp.experiments.models import Experiment, Machine, State
from webapp.history import nights, watchdog
from webapp.history.models import Night, Schedule

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]


@pytest.fixture
def planned(planned: Schedule) -> Schedule:
    """With a night of the 10th."""
    machines.register_this(make.MACHINE, "default")
    nights.queue_due(at(10))
    return planned


def concerns_at(moment: Any, heard: bool = True) -> list[str]:
    if heard:
        Machine.objects.update(last_seen=moment)
    (line,) = watchdog.lines(moment)
    return line.concerns


def test_a_night_on_its_way_is_no_concern(planned: Schedule) -> None:
    assert concerns_at(at(10, 7, 59)) == []


def test_a_night_that_takes_too_long(planned: Schedule) -> None:
    assert concerns_at(at(10, 8, 30)) == ["The night of Mar 10 is still queued, 6\xa0h 30\xa0min after it was due."]


def test_a_night_that_failed(planned: Schedule) -> None:
    row = queue.claim("default")
    assert row is not None
    queue.fail(queue.fence_of(row), "The measuring program was killed.")
    assert concerns_at(at(10, 3)) == ["The night of Mar 10 failed: The measuring program was killed."]


def test_a_night_that_ended_well_or_that_somebody_deleted(planned: Schedule) -> None:
    Experiment.objects.update(state=State.DONE, finished_at=at(10, 3))
    assert concerns_at(at(10, 20)) == []
    Experiment.objects.update(state=State.FAILED, failure="x", deleted_at=at(10, 4))
    assert concerns_at(at(10, 20)) == []


def test_a_pool_whose_workers_fell_silent(planned: Schedule) -> None:
    Machine.objects.update(last_seen=at(10, 2))
    assert concerns_at(at(10, 5), heard=False) == ["No worker of pool default has been heard of since 3\xa0h ago."]


def test_a_pool_that_never_had_a_worker(member: Any) -> None:
    schedule(member, pool="cuda", since=at(10, 3))
    assert concerns_at(at(10, 5)) == ["No worker of pool cuda has ever been heard of."]


def test_a_night_that_nobody_queued(planned: Schedule) -> None:
    assert concerns_at(at(11, 2, 1)) == ["The night of Mar 10 is still queued, 24\xa0h after it was due."]
    assert concerns_at(at(11, 2, 5)) == ["It was due 5\xa0min ago, and no worker has queued it."]


def test_a_night_that_was_left_out(planned: Schedule) -> None:
    Night.objects.update(experiment=None, left_out="An earlier night of it still waits for a worker.")
    assert concerns_at(at(10, 3)) == [
        "The night of Mar 10 was left out: An earlier night of it still waits for a worker."
    ]


def test_a_disabled_owner(planned: Schedule, member: Any) -> None:
    member.is_active = False
    member.save()
    assert concerns_at(at(10, 3)) == ["Its owner anna is disabled: no night will be queued."]


def test_a_schedule_that_is_off_is_no_concern(planned: Schedule) -> None:
    Schedule.objects.update(is_on=False)
    (line,) = watchdog.lines(at(12))
    assert (line.concerns, line.next_due) == ([], None)


def test_all_schedules_take_as_many_queries_as_one(member: Any, django_assert_num_queries: Any) -> None:
    machines.register_this(make.MACHINE, "default")
    for number in range(4):
        schedule(member, title=f"{number}")
    nights.queue_due(at(10))
    with django_assert_num_queries(3):
        lines = watchdog.lines(at(10) + timedelta(minutes=1))
        assert [line.night.experiment.state for line in lines if line.night and line.night.experiment] == ["queued"] * 4
