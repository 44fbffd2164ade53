"""Duties beside measuring: one that fails neither ends the thread nor keeps the others from being done."""

from __future__ import annotations

import pytest
from django.db import OperationalError

from webapp.experiments import attendant


def test_a_duty_that_is_done_is_done() -> None:
    assert attendant.done(lambda: None)


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

    assert not attendant.done(fails)
    assert line in caplog.text


class Enough(BaseException):
    pass


class Attendant:
    """The thread's loop, with each duty noted in place of being done, on a clock that only its pauses move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did, self.now, self.pauses = [""], 0.0, 0
        self.fails_in: set[int] = set()
        self.sleeps_long_after: set[int] = set()

        class Presence:
            def __init__(presence, pool: str) -> None:  # noqa: N805
                assert pool == "default"

            def tell(presence) -> None:  # noqa: N805
                self.note("tell")

        monkeypatch.setattr(attendant, "recover", lambda: self.note("recover"))
        monkeypatch.setattr(attendant.queue, "sweep", lambda: self.note("sweep"))
        monkeypatch.setattr(attendant.queue, "wake_waiting", lambda: self.note("wake"))
        monkeypatch.setattr(attendant.machines, "Presence", Presence)
        monkeypatch.setattr(attendant, "DUTIES", [lambda: self.note("nights")])
        monkeypatch.setattr(attendant.connection, "close", lambda: None)
        monkeypatch.setattr(attendant.time, "time", lambda: self.now)
        monkeypatch.setattr(attendant.time, "sleep", self.pause)

    def note(self, duty: str) -> None:
        self.did[-1] = f"{self.did[-1]} {duty}".strip()
        if self.pauses in self.fails_in:
            raise OperationalError("the database is away")

    def pause(self, seconds: float) -> None:
        self.now += 3600 if self.pauses in self.sleeps_long_after else seconds
        self.pauses += 1
        if self.pauses == 5:
            raise Enough
        self.did.append("")

    def rounds(self) -> list[str]:
        """What it did in each of five rounds."""
        with pytest.raises(Enough):
            attendant._attend()
        return self.did


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Attendant:
    return Attendant(monkeypatch)


SWEEPS, ONLY_WAKES = "recover sweep tell nights", "recover wake tell nights"


def test_each_round_recovers_sweeps_and_tells_and_the_first_judges_nobody(worker: Attendant) -> None:
    assert worker.rounds() == [ONLY_WAKES, SWEEPS, SWEEPS, SWEEPS, SWEEPS]


def test_after_an_outage_of_the_database_others_get_time_to_be_heard(worker: Attendant) -> None:
    worker.fails_in = {2}
    assert worker.rounds() == [ONLY_WAKES, SWEEPS, SWEEPS, ONLY_WAKES, SWEEPS]


def test_after_this_computer_slept_others_get_time_to_be_heard(worker: Attendant) -> None:
    worker.sleeps_long_after = {2}
    assert worker.rounds() == [ONLY_WAKES, SWEEPS, SWEEPS, ONLY_WAKES, SWEEPS]
