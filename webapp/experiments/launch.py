"""Runs the measuring program as a fresh process group and watches over it. Knows nothing of Django.

The program prints its events as JSON lines (``progress``, ``run``, ``error``) among lines of log text. It is held by
a pipe on its standard input: should this process die, the pipe closes and the program stops too.
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

#: The measuring program's command line, as everyone can type it.
PROGRAM: Sequence[str] = (sys.executable, "-m", "bench_worker")
LAST_LINES = 200
MAX_LINE_BYTES = 1_000_000
#: How long a program may take from TERM to its end before it is killed.
PATIENCE_S = 5.0
#: Time beside ``max_seconds`` for what it doesn't bound: starting, weights, the check, writing the result.
GRACE_S = 600.0

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
                self.lines.append(line)

    @property
    def last_output(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True)
class Ended:
    """How the program ended. ``stopped`` is the reason given by the watcher, or None when it ended by itself."""

    code: int
    stopped: str | None
    report: Report


def watch(
    command: Sequence[str],
    *,
    directory: Path,
    limit_s: float,
    beat: Callable[[Report], str | None],
    beat_s: float = 1.0,
) -> Ended:
    """Run ``command`` in ``directory`` to its end; nothing of its process group is left when this returns.

    ``beat`` is called about every ``beat_s`` seconds with the report so far; a reason in return stops the program
    (TERM, then KILL). So does ``limit_s``, with the reason ``"limit"``.
    """
    program = subprocess.Popen(
        command,
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    report, lines = Report(), queue.Queue[str]()
    reader = threading.Thread(target=_read, args=(program.stdout, lines), daemon=True)
    reader.start()
    started = next_beat = time.monotonic()
    stopped: str | None = None
    try:
        while stopped is None and program.poll() is None:
            _drain(lines, report, wait_s=_POLL_S)
            now = time.monotonic()
            if now - started > limit_s:
                stopped = "limit"
            elif now >= next_beat:
                next_beat = now + beat_s
                stopped = beat(report)
    finally:
        _end_group(program)
        reader.join(PATIENCE_S)
        _drain(lines, report, wait_s=0)
    return Ended(program.returncode, stopped, report)


def why(ended: Ended, limit_s: float) -> str | None:
    """The one sentence that says why the program did not finish its work; None where it did."""
    if ended.stopped == "limit":
        return f"The measuring program was stopped: it still ran after {limit_s:,.0f} s, the most it may take."
    said = ended.report.error
    match ended.code:
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
        case code if code < 0:
            by_whom = " by hand, or by the system for want of memory" if code == -signal.SIGKILL else ""
            return f"The measuring program was killed ({_signal_name(-code)}){by_whom}."
        case code:
            last = said or next((line for line in reversed(ended.report.lines) if line.strip()), "no output")
            return f"The measuring program ended with exit code {code}: {last}"


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


def _end_group(program: subprocess.Popen[bytes]) -> None:
    """TERM, then KILL, to the program and everything it started."""
    if program.poll() is None:
        _signal_group(program, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(PATIENCE_S)
    _signal_group(program, signal.SIGKILL)
    program.wait()
    assert program.stdin is not None
    program.stdin.close()


def _signal_group(program: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(program.pid, number)
    except ProcessLookupError:
        return  # nothing of the group is left


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
