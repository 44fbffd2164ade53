"""What a dead worker left on the disk, taken up by its successor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError

from bench_worker.kernel_report import ask
from tests.webapp.experiments import make
from tests.webapp.experiments.waiting import is_gone
from webapp.experiments import attempts, launch, queue, recover
from webapp.experiments.models import Experiment, State

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def data(settings: Any, tmp_path: Path, no_broker: None) -> Path:
    settings.MOESCOPE_DATA = tmp_path
    return tmp_path


def lost(result: str | None = None, output: str | None = None) -> tuple[Experiment, Path]:
    """A running experiment whose worker is gone, with what it had written."""
    queue.enqueue(make.experiment(), author=None)
    return left(result, output)


def left(result: str | None = None, output: str | None = None) -> tuple[Experiment, Path]:
    row = queue.claim("default")
    assert row is not None
    directory = attempts.home() / f"{row.pk}-{row.attempt}"
    directory.mkdir()
    (directory / attempts.EXPERIMENT).write_text(json.dumps(row.document))
    for name, text in ((attempts.RESULT, result), (attempts.OUTPUT, output)):
        if text is not None:
            (directory / name).write_text(text)
    return row, directory


def whole_result() -> str:
    return make.result(make.experiment()).model_dump_json(by_alias=True)


def test_an_unfinished_attempt_is_queued_again_at_once() -> None:
    row, directory = lost()
    recover.recover()
    row.refresh_from_db()
    assert (row.state, row.attempt) == (State.QUEUED, 1)
    assert not directory.exists()


def test_a_whole_table_of_kernels_is_stored() -> None:
    queue.enqueue_kernels(ask("olmoe-1b-7b", "1,64"), author=None, pool="default")
    row, directory = left(make.table().model_dump_json())
    recover.recover()
    row.refresh_from_db()
    assert (row.state, row.result["model"]) == (State.DONE, "olmoe-1b-7b")
    assert not directory.exists()


def test_a_whole_result_is_stored() -> None:
    row, directory = lost(result=whole_result())
    recover.recover()
    row.refresh_from_db()
    assert (row.state, row.attempt, row.runs.count()) == (State.DONE, 1, 4)
    assert not directory.exists()


def test_a_result_of_an_attempt_that_was_given_up_is_thrown_away() -> None:
    row, directory = lost(result=whole_result())
    queue.give_back(queue.fence_of(row))
    recover.recover()
    row.refresh_from_db()
    assert (row.state, row.runs.count()) == (State.QUEUED, 0)
    assert not directory.exists()


def test_the_third_loss_is_told_with_the_last_output() -> None:
    row, _ = lost(output="line 1\nline 2")
    Experiment.objects.filter(pk=row.pk).update(attempt=3)
    (attempts.home() / f"{row.pk}-1").rename(attempts.home() / f"{row.pk}-3")
    recover.recover()
    row.refresh_from_db()
    assert row.state == State.FAILED
    assert row.failure == (
        "Its worker was lost 3 times (the last time: its process was killed), so it isn't tried again."
    )
    assert row.last_output == "line 1\nline 2"


def test_one_that_should_be_canceled_is() -> None:
    row, _ = lost()
    queue.request_cancel(row.pk)
    recover.recover()
    row.refresh_from_db()
    assert row.state == State.CANCELED


def test_what_an_attempt_still_runs_is_ended_first() -> None:
    row, directory = lost()
    left = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=os.environ | {launch.MARK: str(directory)}
    )
    recover.recover()
    assert is_gone(left.pid)
    left.wait()
    row.refresh_from_db()
    assert row.state == State.QUEUED


def test_an_attempt_that_goes_on_is_left_alone() -> None:
    queue.enqueue(make.experiment(), author=None)
    row = queue.claim("default")
    assert row is not None
    with attempts.begun(queue.fence_of(row)):
        recover.recover()
        row.refresh_from_db()
        assert row.state == State.RUNNING


def test_what_another_database_left_is_no_result_of_ours() -> None:
    row, directory = lost(result=whole_result())
    (directory / attempts.EXPERIMENT).write_text(json.dumps(row.document | {"title": "Another"}))
    recover.recover()
    row.refresh_from_db()
    assert (row.state, row.runs.count()) == (State.RUNNING, 0)
    assert not directory.exists()


def test_while_the_database_is_away_everything_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    row, directory = lost(result=whole_result())

    def away(*args: Any) -> None:
        raise OperationalError("gone")

    with monkeypatch.context() as outage:
        outage.setattr(recover, "store", away)
        with pytest.raises(OperationalError, match="gone"):
            recover.recover()
    assert (directory / attempts.RESULT).exists()
    recover.recover()
    row.refresh_from_db()
    assert row.state == State.DONE


def test_a_result_that_can_not_be_stored_fails_the_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    row, directory = lost(result=whole_result())

    def breaks(*args: Any) -> None:
        raise ValueError("no room")

    monkeypatch.setattr(recover, "store", breaks)
    with pytest.raises(ValueError, match="no room"):
        recover.recover()
    row.refresh_from_db()
    assert (row.state, row.failure) == (State.FAILED, "The worker could not carry it out: no room")
    recover.recover()
    assert not directory.exists()
