"""Duties beside measuring: one that fails neither ends the thread nor keeps the others from being done."""

from __future__ import annotations

import pytest
from django.db import OperationalError

from webapp.experiments import attendant


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OperationalError("refused"), "The database is away: refused"),
        (ValueError("odd"), "A duty of the worker failed"),
    ],
)
def test_one_that_fails_is_logged(error: Exception, line: str, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise error

    attendant.done(fails)
    assert line in caplog.text


def test_a_round_recovers_sweeps_and_tells_and_goes_on_after_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    class Enough(BaseException):
        pass

    class Presence:
        def __init__(self, pool: str) -> None:
            assert pool == "default"

        def tell(self) -> None:
            did.append("tell")
            if did.count("tell") == 1:
                raise OperationalError("the database is away")

    def pause(seconds: float) -> None:
        did.append(f"pause {seconds:g}")
        if did.count("pause 10") == 3:
            raise Enough

    monkeypatch.setattr(attendant, "recover", lambda: did.append("recover"))
    monkeypatch.setattr(attendant.queue, "sweep", lambda: did.append("sweep"))
    monkeypatch.setattr(attendant.machines, "Presence", Presence)
    monkeypatch.setattr(attendant.time, "sleep", pause)
    monkeypatch.setattr(attendant.connection, "close", lambda: did.append("close"))
    with pytest.raises(Enough):
        attendant._attend()
    assert did == ["recover", "sweep", "tell", "close", "pause 10"] * 3
