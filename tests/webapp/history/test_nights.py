"""A night is queued exactly once, whoever looks and how often; one that can't be says why."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction

from tests.webapp.experiments import make
from tests.webapp.history.make_nights import SMALL, at, at_once, schedule
from webapp.experiments import machines, memory, queue, upkeep
from webapp.experiments.models import Experiment, State
from webapp.history import nights
from webapp.history.models import CatchUp, Night

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]


def look(*moments: datetime) -> None:
    for moment in moments:
        nights.queue_due(moment)


def test_what_is_due_is_queued_in_the_owners_name_and_pool(member: Any) -> None:
    machines.register_this(make.MACHINE, "cuda")
    planned = schedule(member, pool="cuda", title="Nightly fusion")
    look(at(10))
    night = Night.objects.get()
    row = night.experiment
    assert row is not None
    assert (night.schedule, night.due_at, night.left_out) == (planned, at(10), "")
    assert (row.state, row.author, row.pool, row.tags) == (State.QUEUED, member, "cuda", ["nightly"])
    assert row.document == make.experiment(**SMALL).document()


def test_nothing_is_queued_before_its_time_or_by_a_schedule_that_is_off(member: Any) -> None:
    schedule(member, since=at(9, 3))
    schedule(member, is_on=False)
    look(at(10, 1, 59, 59))
    assert not Night.objects.exists()


def test_every_look_of_a_night_finds_it_queued_by_the_first(member: Any) -> None:
    schedule(member)
    look(at(10), at(10), at(10, 2, 0, 10), at(10, 14), at(11, 1, 59))
    assert Experiment.objects.count() == 1


def test_days_that_are_not_ticked_are_left_alone(member: Any) -> None:
    schedule(member, days=[0], since=at(8))
    look(at(8, 12), at(9, 12), at(10, 12), at(15, 12))  # the 9th is a Monday
    assert [night.due_at for night in Night.objects.all()] == [at(9)]


def test_the_database_lets_no_second_night_of_a_due_time_in(member: Any) -> None:
    planned = schedule(member)
    Night.objects.create(schedule=planned, due_at=at(10))
    with pytest.raises(IntegrityError), transaction.atomic():
        Night.objects.create(schedule=planned, due_at=at(10))


@pytest.mark.django_db(transaction=True)
def test_workers_that_look_at_the_same_moment_queue_one_night(member: Any) -> None:
    schedule(member)
    at_once(lambda: nights.queue_due(at(10)))
    assert Experiment.objects.count() == Night.objects.count() == 1


def test_a_worker_that_dies_between_night_and_experiment_leaves_neither(
    member: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(member)

    def dies(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("the database is shutting down")

    with monkeypatch.context() as broken:
        broken.setattr(queue, "enqueue", dies)
        look(at(10))
    assert not Night.objects.exists()
    look(at(10, 2, 0, 10))
    assert Night.objects.get().experiment is not None


@pytest.mark.django_db(transaction=True)
def test_a_database_that_restarts_in_the_due_minute_leads_to_one_run(
    member: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(member)

    def restarts(*args: Any, **kwargs: Any) -> None:
        """What a restart does to a connection, once the night is written and before its experiment is."""
        connection.cursor().execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with monkeypatch.context() as broken:
        broken.setattr(queue, "enqueue", restarts)
        nights.queue_due(at(10))
    connection.close()  # as the worker does after each round
    assert not Night.objects.exists()
    for second in (10, 20):
        nights.queue_due(at(10, 2, 0, second))
    assert Experiment.objects.get() == Night.objects.get().experiment


def test_a_schedule_that_fails_holds_up_no_other(member: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule(member, title="A", pool="broken")
    schedule(member, title="B")

    def check(asked: Any, pool: str) -> None:
        if pool == "broken":
            raise OSError("No space left on device")

    monkeypatch.setattr(memory, "check", check)
    look(at(10))
    assert [night.schedule.title for night in Night.objects.all()] == ["B"]


class TestCatchUp:
    def test_a_night_that_was_missed_is_skipped_and_says_so(self, member: Any) -> None:
        schedule(member)
        look(at(10, 9))
        night = Night.objects.get()
        assert night.experiment is None
        assert night.left_out == "No worker was there to queue it in time, and this schedule skips what was missed."

    def test_a_worker_that_restarts_at_the_due_minute_misses_nothing(self, member: Any) -> None:
        schedule(member)
        look(at(10, 1, 59, 50), at(10, 2, 3))
        assert Experiment.objects.count() == 1

    def test_however_many_were_missed_one_is_run(self, member: Any) -> None:
        schedule(member, catch_up=CatchUp.ONCE)
        look(at(10, 9), at(10, 10))
        assert [night.due_at for night in Night.objects.all()] == [at(10)]
        assert Experiment.objects.count() == 1


class TestHindrances:
    def left_out(self) -> str:
        look(at(10))
        night = Night.objects.get()
        assert night.experiment is None
        return night.left_out

    def test_a_disabled_owner(self, member: Any) -> None:
        schedule(member)
        member.is_active = False
        member.save()
        assert self.left_out() == "Its owner anna is disabled: give it another one."

    def test_an_owner_who_may_only_read_by_now(self, member: Any) -> None:
        schedule(member)
        member.role = "viewer"
        member.save()
        assert self.left_out() == "Its owner anna may only read: give it another one."

    def test_an_owner_who_is_gone(self) -> None:
        schedule(None)
        assert self.left_out() == "Its owner is gone: give it another one."

    def test_an_experiment_that_can_no_longer_be_measured(self, member: Any) -> None:
        document = make.document()
        document["base"]["workload"]["trace"] = "deleted-since"
        schedule(member, document=document)
        assert self.left_out().startswith("base.workload.trace: 'deleted-since' is not one of ")

    def test_a_machine_that_became_too_small(self, member: Any) -> None:
        machines.register_this(make.MACHINE | {"memory_bytes": 1_000_000}, "default")
        schedule(member)
        assert "needs" in self.left_out()

    def test_nights_do_not_pile_up_where_no_worker_takes_them(self, member: Any) -> None:
        schedule(member)
        look(at(10), at(11))
        second = Night.objects.get(due_at=at(11))
        assert (second.experiment, second.left_out) == (None, "An earlier night of it still waits for a worker.")
        upkeep.delete(Experiment.objects.get().pk)
        look(at(12))
        assert Night.objects.get(due_at=at(12)).experiment is not None


class TestRunNow:
    def test_it_runs_at_once_and_a_second_click_runs_nothing_more(self, member: Any) -> None:
        planned = schedule(member)
        assert nights.run_now(planned, planned.owner, at(10, 11, 30, 5)) is not None
        assert nights.run_now(planned, planned.owner, at(10, 11, 30, 6)) is None
        assert Night.objects.get().due_at == at(10, 11, 30)

    def test_the_planned_night_comes_all_the_same(self, member: Any) -> None:
        planned = schedule(member)
        night = nights.run_now(planned, planned.owner, at(9, 11))
        assert night is not None
        assert night.experiment is not None
        queue.request_cancel(night.experiment.pk)
        look(at(10))
        assert Experiment.objects.count() == 2
