"""The state machine: every change of state is one conditional UPDATE, fenced by the attempt."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone
from kombu.exceptions import OperationalError

from tests.webapp.experiments import make
from webapp.experiments import ingest, queue
from webapp.experiments.models import Experiment, Run, StageSeries, State
from webapp.experiments.queue import Fence, Order

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def woken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pools that were told to look, in place of messages to a broker."""
    pools: list[str] = []
    monkeypatch.setattr(queue.current_app, "send_task", lambda name, queue, **options: pools.append(queue))
    return pools


def put(title: str = "Fusion", pool: str = "default") -> Experiment:
    return queue.enqueue(make.experiment(title=title), author=None, pool=pool)


def running(title: str = "Fusion") -> tuple[Experiment, Fence]:
    put(title)
    row = queue.claim("default")
    assert row is not None
    return row, queue.fence_of(row)


def state(row: Experiment) -> str:
    row.refresh_from_db()
    return row.state


def test_an_experiment_is_stored_whole_and_wakes_its_pool_once_committed(
    woken: list[str], member: Any, django_capture_on_commit_callbacks: Any
) -> None:
    asked = make.experiment()
    with django_capture_on_commit_callbacks(execute=True):
        row = queue.enqueue(asked, author=member, pool="gpu")
        assert woken == []
    assert woken == ["gpu"]
    assert row.document == asked.document()
    assert (row.title, row.state, row.attempt, row.author) == ("Fusion", State.QUEUED, 0, member)
    assert row.plan == [
        {"variant": variant, "condition": condition, "layer_scale": 16.0}
        for condition in ("1×16", "4×64")
        for variant in ("gate_up", "none")
    ]


def test_a_broker_that_is_down_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def down(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(queue.current_app, "send_task", down)
    with django_capture_on_commit_callbacks(execute=True):
        row = put()
    assert state(row) == State.QUEUED
    assert "the sweep will do it: connection refused" in caplog.text


def test_a_claim_takes_the_oldest_of_its_pool() -> None:
    put("other", pool="gpu")
    first, second = put("first"), put("second")
    claimed = queue.claim("default")
    assert claimed == first
    assert (claimed.state, claimed.attempt) == (State.RUNNING, 1)
    assert claimed.heartbeat_at is not None
    assert queue.claim("default") == second
    assert queue.claim("default") is None


@pytest.mark.django_db(transaction=True)
def test_two_claims_at_once_get_different_experiments() -> None:
    """Both transactions are open at the same time: neither waits for the other, nor gets its row."""
    put("first"), put("second")
    both_hold = threading.Barrier(2, timeout=10)

    def claim() -> int | None:
        try:
            with transaction.atomic():
                row = queue.claim("default")
                both_hold.wait()
                return row and row.pk
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        taken = list(threads.map(lambda _: claim(), range(2)))
    assert sorted(taken) == sorted(Experiment.objects.values_list("pk", flat=True))


def test_a_heartbeat_writes_progress_and_hears_a_cancel_request() -> None:
    row, fence = running()
    assert queue.beat(fence, {"done": 1}) == Order.GO_ON
    assert queue.request_cancel(row.pk)
    assert queue.beat(fence, {"done": 2}, [{"variant": "base"}]) == Order.CANCEL
    row.refresh_from_db()
    assert (row.progress, row.so_far) == ({"done": 2}, [{"variant": "base"}])


def test_an_older_attempt_is_told_that_it_lost_the_row_and_writes_nothing() -> None:
    row, old = running()
    queue.give_back(old)
    again = queue.claim("default")
    assert again is not None
    assert again.attempt == 2
    assert queue.beat(old, {"done": 9}) == Order.LOST
    assert not queue.begin_ingest(old)
    assert not queue.fail(old, "late")
    assert not queue.cancel(old)
    queue.give_back(old)
    row.refresh_from_db()
    assert (row.state, row.attempt, row.progress) == (State.RUNNING, 2, {})


def test_an_orderly_stop_of_the_worker_counts_for_no_attempt() -> None:
    row, fence = running()
    for _ in range(queue.MAX_ATTEMPTS + 1):
        queue.give_back(fence)
        again = queue.claim("default")
        assert again is not None
        fence = queue.fence_of(again)
    assert state(row) == State.RUNNING


def test_a_queued_experiment_is_canceled_at_once() -> None:
    row = put()
    assert queue.request_cancel(row.pk)
    assert state(row) == State.CANCELED
    assert row.finished_at is not None
    assert queue.claim("default") is None


@pytest.mark.parametrize("end", [State.DONE, State.FAILED, State.CANCELED, State.INGESTING])
def test_what_has_ended_or_is_being_stored_is_not_canceled(end: State) -> None:
    row, fence = running()
    if end == State.FAILED:
        queue.fail(fence, "no")
    elif end == State.CANCELED:
        queue.cancel(fence)
    else:
        queue.begin_ingest(fence)
        if end == State.DONE:
            ingest.ingest(fence, make.result(make.experiment()))
    assert not queue.request_cancel(row.pk)
    assert state(row) == end


def test_a_failure_keeps_its_sentence_and_the_last_output() -> None:
    row, fence = running()
    assert queue.fail(fence, "It was killed.", "line 1\nline 2")
    assert state(row) == State.FAILED
    assert (row.failure, row.last_output) == ("It was killed.", "line 1\nline 2")
    assert not queue.fail(fence, "again")


def test_the_sweep_queues_again_what_went_silent(woken: list[str]) -> None:
    row, fence = running()
    queue.beat(fence, {"done": 1}, [{"variant": "base"}])
    now = timezone.now()
    queue.sweep(now + timedelta(seconds=89))
    assert state(row) == State.RUNNING
    queue.sweep(now + timedelta(seconds=91))
    row.refresh_from_db()
    assert (row.state, row.attempt, row.progress, row.so_far) == (State.QUEUED, 1, {}, [])
    assert woken == ["default"]


def test_the_sweep_also_takes_back_what_went_silent_while_it_was_stored() -> None:
    row, fence = running()
    queue.begin_ingest(fence)
    queue.sweep(timezone.now() + timedelta(seconds=91))
    assert state(row) == State.QUEUED


def test_clocks_that_disagree_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat is written and judged by the database's clock, not by those of two computers."""
    monkeypatch.setattr(timezone, "now", lambda: datetime.now(UTC) - timedelta(hours=1))
    row, fence = running()
    queue.beat(fence, {"done": 1})
    monkeypatch.setattr(timezone, "now", lambda: datetime.now(UTC) + timedelta(hours=1))
    queue.sweep()
    assert state(row) == State.RUNNING
    assert row.started_at is not None
    assert abs(datetime.now(UTC) - row.started_at) < timedelta(minutes=30)


def test_a_worker_that_is_known_to_be_dead_is_not_waited_for() -> None:
    row, fence = running()
    queue.lose(fence, "its process was killed")
    assert state(row) == State.QUEUED


def test_storing_may_begin_again_after_an_answer_got_lost() -> None:
    row, fence = running()
    assert queue.begin_ingest(fence)
    assert queue.begin_ingest(fence)
    assert state(row) == State.INGESTING


def test_a_third_lost_worker_is_the_last() -> None:
    row = put()
    for _ in range(3):
        assert queue.claim("default") is not None
        assert state(row) == State.RUNNING
        queue.sweep(timezone.now() + timedelta(seconds=91))
    assert state(row) == State.FAILED
    assert row.failure == "Its worker was lost 3 times (the last time: no heartbeat for 90 s), so it isn't tried again."


def test_a_silent_experiment_that_should_be_canceled_is() -> None:
    row, _ = running()
    queue.request_cancel(row.pk)
    queue.sweep(timezone.now() + timedelta(seconds=91))
    assert state(row) == State.CANCELED


def test_the_sweep_wakes_every_pool_where_something_waits(woken: list[str]) -> None:
    put(pool="gpu"), put(pool="gpu"), put(pool="cpu")
    queue.sweep()
    assert woken == ["cpu", "gpu"]


def test_a_result_is_stored_once_whoever_tries_again() -> None:
    row, fence = running()
    measured = make.result(make.experiment())
    assert queue.begin_ingest(fence)
    assert ingest.ingest(fence, measured)
    assert not ingest.ingest(fence, measured)
    assert state(row) == State.DONE
    assert Run.objects.count() == 4
    assert StageSeries.objects.count() == 4 * (7 + 3 + 8 + 1)


def test_a_late_attempt_stores_nothing() -> None:
    _, old = running()
    queue.begin_ingest(old)
    queue.sweep(timezone.now() + timedelta(seconds=91))
    queue.claim("default")
    assert not ingest.ingest(old, make.result(make.experiment()))
    assert not Run.objects.exists()


def test_a_result_that_can_not_be_stored_leaves_nothing_behind() -> None:
    """Two runs of one name: the transaction as a whole is undone, and the row is still held."""
    row, fence = running()
    measured = make.result(make.experiment())
    measured.runs.append(measured.runs[0])
    queue.begin_ingest(fence)
    with pytest.raises(IntegrityError), transaction.atomic():
        ingest.ingest(fence, measured)
    assert state(row) == State.INGESTING
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "unheard of"},
        {"state": State.DONE},
        {"state": State.FAILED, "finished_at": timezone.now()},
        {"state": State.RUNNING},
        {"finished_at": timezone.now()},
    ],
)
def test_the_database_refuses_states_that_make_no_sense(changes: dict[str, Any]) -> None:
    row = put()
    with pytest.raises(IntegrityError), transaction.atomic():
        Experiment.objects.filter(pk=row.pk).update(**changes)
