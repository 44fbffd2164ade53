"""Runs the measuring program under a guard and watches over it. Knows nothing of Django.

The program prints its events as JSON lines (``progress``, ``run``, ``error``) among lines of log text. The guard (see
`webapp.guard`) keeps its limits and ends its whole family; it is held by a pipe, so it does so too when this process
dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from webapp import guard, processes
from webapp.guard import End, Limits
from webapp.ui.formatting import size

#: The measuring program's command line, as everyone can type it.
PROGRAM: Sequence[str] = (sys.executable, "-m", "bench_worker")
ROOT = Path(__file__).resolve().parents[2]
#: Names, in the environment of a measuring process, the attempt that it belongs to.
MARK = "MOESCOPE_ATTEMPT"
LAST_LINES = 200
#: An event may be long; of a line of log text only so much is kept.
MAX_LINE_BYTES, MAX_KEPT_CHARS = 1_000_000, 2_000
#: Time beside ``max_seconds`` for what it doesn't bound: starting, weights, the check, writing the result.
GRACE_S = 600.0
#: Between two heartbeats, which also carry progress.
BEAT_S = 1.0
#: A guard that is this late has itself come to a halt, and is ended with all that it guards.
GUARD_LATE_S = 20.0
#: Beside the guard's own reasons: the guard did not live to tell one.
UNGUARDED = "unguarded"

_POLL_S = 0.1


@dataclass
class Report:
    """What the program has said so far."""

    progress: dict[str, Any] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))

    def take(self, line: str) -> None:
        """Account for one line of output: an event, or log text that is kept as it is."""
        event = _event(line)
        match event.get("event"):
            case "progress":
                self.progress = {key: value for key, value in event.items() if key != "event"}
            case "run":
                self.runs.append(event["run"])
            case "error":
                self.error = str(event["message"])
                self.lines.append(self.error)
            case _:
                self.lines.append(line[:MAX_KEPT_CHARS])

    @property
    def last_output(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True)
class Ended:
    """How the program ended. ``reason`` is the one that the beat gave, or None where it let it go on."""

    end: End
    reason: str | None
    report: Report


def watch(
    command: Sequence[str],
    *,
    limits: Limits,
    mark: str,
    beat: Callable[[Report], str | None],
    beat_s: float,
) -> Ended:
    """Run ``command`` to its end; nothing that it started is left when this returns.

    ``beat`` is called about every ``beat_s`` seconds with the report so far; a reason in return stops the program
    (TERM, then KILL), and so do the ``limits``. ``mark`` tells this attempt's processes from all others.
    """
    guarded = subprocess.Popen(
        [sys.executable, "-m", guard.__name__, f"--seconds={limits.seconds}", f"--bytes={limits.bytes}", *command],
        cwd=ROOT,
        env=os.environ | {MARK: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    report, lines = Report(), queue.Queue[str]()
    reader = threading.Thread(target=_read, args=(guarded.stderr, lines), daemon=True)
    reader.start()
    next_beat = time.monotonic()
    late_at = next_beat + limits.seconds + GUARD_LATE_S
    reason: str | None = None
    try:
        while reason is None and guarded.poll() is None and time.monotonic() < late_at:
            _drain(lines, report, wait_s=_POLL_S)
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + beat_s
                reason = beat(report)
    finally:
        end = _let_go(guarded, mark)
        reader.join(guard.PATIENCE_S)
        _drain(lines, report, wait_s=0)
    return Ended(end, reason, report)


def why(end: End, report: Report, limits: Limits) -> str | None:
    """The one sentence that says why the program did not finish its work; None where it did."""
    used = f"it used {size(end.peak_bytes)} of {size(limits.bytes)}"
    if end.stopped == "time":
        return f"The measuring program was stopped: it still ran after {limits.seconds:,.0f} s, the most it may take."
    if end.stopped == "memory":
        return f"The measuring program was stopped: out of memory, {used}."
    if end.stopped == UNGUARDED:
        return f"The guard of the measuring program ended ({processes.how_it_ended(end.code)}), and that with it."
    said = report.error
    match end.code:
        case 0:
            return None
        case 2:
            return said or "The measuring program refused the experiment and did not say why."
        case 3:
            return said or "The measurement does not fit into this machine's memory."
        case 4:
            return said or "A part that the experiment names is not available on this machine."
        case 130:
            return "The measuring program was told to stop by someone other than this product."
        case -9 if end.out_of_memory:
            return f"The system killed the measuring program: out of memory, {used} when last seen."
        case code if code < 0:
            return f"The measuring program was killed ({processes.how_it_ended(code)}){_by_whom(end)}."
        case code:
            last = said or next((line for line in reversed(report.lines) if line.strip()), "no output")
            meanwhile = " (meanwhile the system killed a process for want of memory)" if end.out_of_memory else ""
            return f"The measuring program ended with exit code {code}{meanwhile}: {last}"


def _by_whom(end: End) -> str:
    if end.code != -signal.SIGKILL:
        return ""
    if end.out_of_memory is None:
        return " by hand, or by the system for want of memory"
    return " from outside; the system had memory left"


def _event(line: str) -> dict[str, Any]:
    if not line.startswith("{"):
        return {}
    try:
        event = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return event if isinstance(event, dict) else {}


def _read(stream: IO[bytes], lines: queue.Queue[str]) -> None:
    with stream:
        while line := stream.readline(MAX_LINE_BYTES):
            lines.put(line.decode("utf-8", "replace").replace("\0", "").rstrip("\r\n"))


def _drain(lines: queue.Queue[str], report: Report, wait_s: float) -> None:
    """Take every line that is there; wait for a first one at most ``wait_s``."""
    try:
        report.take(lines.get(timeout=wait_s) if wait_s else lines.get_nowait())
        while True:
            report.take(lines.get_nowait())
    except queue.Empty:
        return


def _let_go(guarded: subprocess.Popen[bytes], mark: str) -> End:
    """Have the guard end what it guards; should it have come to a halt, or been killed itself, end all without it."""
    assert guarded.stdin is not None
    assert guarded.stdout is not None
    guarded.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        guarded.wait(GUARD_LATE_S)
    halted = guarded.poll() is None
    processes.kill(processes.carrying(MARK, mark))
    code = guarded.wait()
    with guarded.stdout as stdout:
        said = stdout.read()
    return End(**json.loads(said)) if said else End(code, "time" if halted else UNGUARDED)
