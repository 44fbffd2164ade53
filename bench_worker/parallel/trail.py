"""Signs of life of each rank in a small file of its own, for the launcher that watches over them. Torch-free.

A sign costs a write to shared memory, no call to the system: it may stand between two stages. Beside them a thread says
every second that the process runs at all: ranks that wait for one which was stopped have come as far as that one.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

__all__ = ["Pace", "Sign", "Trail", "read"]

#: When the process last ran (monotonic). First, where it is aligned.
_ALIVE = struct.Struct("@d")
#: Process, number of signs so far, when the last one was given (monotonic), `Pace`, and the lengths of the two texts.
_HEAD = struct.Struct("@qqdHHH")
ALIVE_EVERY_S = 1.0
_LAST_BYTES, _ERROR_BYTES = 200, 3000
_TEXTS = _ALIVE.size + _HEAD.size
_SIZE = _TEXTS + _LAST_BYTES + _ERROR_BYTES


class Pace(IntEnum):
    """What to expect of a rank. ``STEPS`` give a sign with every stage. Work in ``SILENCE`` gives none until it ends,
    however long it takes, but its process runs. A rank that has ``ENDED`` gives none, and need not run."""

    STEPS = 0
    SILENCE = 1
    ENDED = 2


class Sign(NamedTuple):
    """``signs`` so far, the last of them ``last`` at ``at_s``; the process ran at ``alive_s``, both on the monotonic
    clock. ``error``: why the rank ended."""

    pid: int
    signs: int
    at_s: float
    alive_s: float
    last: str
    error: str
    pace: Pace = Pace.STEPS


class Trail:
    """Written by one rank."""

    def __init__(self, file: Path, pid: int) -> None:
        file.write_bytes(b"\0" * _SIZE)
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), _SIZE)
        self._pid, self._signs, self._last, self._error = pid, 0, b"", b""
        self._phase, self._pace = "", Pace.STEPS
        self._run()  # before the first sign: who reads that must not take it for one of a process that never ran
        self.sign("its start")
        threading.Thread(target=self._stay_alive, daemon=True).start()

    def phase(self, text: str, pace: Pace = Pace.STEPS) -> None:
        """What the signs from now on belong to, and which of them to expect: a step, or what is prepared."""
        self._phase, self._pace = text, pace
        self.sign("")

    def end(self) -> None:
        """It has nothing left to do, and the others may go on without it."""
        self.phase("its end", Pace.ENDED)

    def sign(self, what: str) -> None:
        """It has come so far."""
        self._signs += 1
        last = f"{what} of {self._phase}" if what and self._phase else what or self._phase
        self._last = last.encode()[:_LAST_BYTES]
        self._write()

    def fail(self, error: str) -> None:
        """It ends, for a reason of its own."""
        self._error = error.encode()[:_ERROR_BYTES]
        self._write()

    def _run(self) -> None:
        self._map[: _ALIVE.size] = _ALIVE.pack(time.monotonic())

    def _stay_alive(self) -> None:
        while True:
            time.sleep(ALIVE_EVERY_S)
            self._run()

    def _write(self) -> None:
        start = _TEXTS
        self._map[start : start + len(self._last)] = self._last
        if self._error:
            self._map[start + _LAST_BYTES : start + _LAST_BYTES + len(self._error)] = self._error
        lengths = len(self._last), len(self._error)
        head = _HEAD.pack(self._pid, self._signs, time.monotonic(), self._pace, *lengths)
        self._map[_ALIVE.size : _TEXTS] = head  # in one copy: `struct.pack_into` writes zeros first


def read(file: Path) -> Sign | None:
    """The last sign of the rank that writes ``file``; None before its first."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _SIZE:
        return None
    (alive_s,) = _ALIVE.unpack_from(data)
    pid, signs, at_s, pace, last, error = _HEAD.unpack_from(data, _ALIVE.size)
    texts = data[_TEXTS:]
    if not signs:
        return None
    of_error = texts[_LAST_BYTES : _LAST_BYTES + error]
    return Sign(pid, signs, at_s, alive_s, _text(texts[:last]), _text(of_error), Pace(pace))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
