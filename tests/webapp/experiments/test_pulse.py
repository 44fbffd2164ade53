"""Beat's sign of life: noted when a sweep has reached the broker, and only then."""

from __future__ import annotations

import pytest
from django.db import OperationalError
from kombu.exceptions import OperationalError as BrokerError

from webapp.celery import app
from webapp.experiments import pulse, tasks

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def same_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's transaction goes on."""
    monkeypatch.setattr(pulse.connection, "close", lambda: None)


def test_a_sweep_that_was_sent_is_a_sign_of_life() -> None:
    assert pulse.last(pulse.BEAT) is None
    tasks.sweep.apply_async(expires=1)
    first = pulse.last(pulse.BEAT)
    assert first is not None
    tasks.sweep.apply_async(expires=1)
    second = pulse.last(pulse.BEAT)
    assert second is not None
    assert second > first


def test_a_wake_up_is_not() -> None:
    tasks.work.apply_async(expires=1)
    assert pulse.last(pulse.BEAT) is None


def test_nor_is_a_sweep_that_did_not_reach_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.conf, "broker_url", "redis+socket:///nowhere/valkey.sock")
    with app.connection_for_write() as nowhere, pytest.raises(BrokerError):
        tasks.sweep.apply_async(connection=nowhere, retry=False)
    assert pulse.last(pulse.BEAT) is None


def test_a_database_that_is_away_does_not_stop_beat(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(part: str) -> None:
        raise OperationalError("the server is gone")

    monkeypatch.setattr(pulse, "note", away)
    tasks.sweep.apply_async(expires=1)
    assert "Beat's sign of life is not written: the server is gone" in caplog.text
