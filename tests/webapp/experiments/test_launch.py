"""The measuring program as a process: what it says, how it ends, and that nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.webapp.experiments.waiting import is_gone
from webapp import processes
from webapp.experiments import launch
from webapp.experiments.launch import Ended, Report, watch, why
from webapp.guard import End, Limits

SAY = """
import json, os, signal, sys, time
def say(**event): os.write(2, json.dumps(event).encode() + b"\\n")
"""
#: A program that runs until it is stopped, and says when it is ready.
HANGS = "say(event='progress', phase='measure', done=1, total=2)\nwhile True: signal.pause()"
LIMITS = Limits(seconds=900, bytes=15_000_000_000)


def program(code: str) -> list[str]:
    return [sys.executable, "-c", SAY + code]


def run(
    code: str,
    tmp_path: Path,
    *,
    limits: Limits = LIMITS,
    beat: Callable[[Report], str | None] = lambda report: None,
) -> Ended:
    return watch(program(code), limits=limits, mark=str(tmp_path), beat=beat, beat_s=0.05)


def once_ready(reason: str) -> Callable[[Report], str | None]:
    return lambda report: reason if report.progress else None


def test_it_collects_events_and_log_lines(tmp_path: Path) -> None:
    ended = run(
        "say(event='progress', phase='check', done=0, total=1)\n"
        "say(event='run', run={'variant': 'base'})\n"
        "print('plain text')\n"
        "print('{not json')",
        tmp_path,
    )
    assert (ended.end.code, ended.end.stopped, ended.reason) == (0, None, None)
    assert ended.report.progress == {"phase": "check", "done": 0, "total": 1}
    assert ended.report.runs == [{"variant": "base"}]
    assert list(ended.report.lines) == ["plain text", "{not json"]


def test_it_keeps_the_last_lines_only(tmp_path: Path) -> None:
    ended = run("for n in range(1000): print(n)", tmp_path)
    assert ended.report.last_output.split("\n") == [str(n) for n in range(800, 1000)]


def test_standard_input_stays_open_and_silent(tmp_path: Path) -> None:
    ended = run("import select; print(select.select([0], [], [], 0)[0])", tmp_path)
    assert ended.report.last_output == "[]"


def test_an_endless_line_is_cut(tmp_path: Path) -> None:
    ended = run("print('x' * 100_000)", tmp_path)
    assert ended.report.last_output == "x" * launch.MAX_KEPT_CHARS


def test_output_that_is_not_text_stays_storable(tmp_path: Path) -> None:
    ended = run(r"sys.stdout.buffer.write(b'a\x00\xffb\n')", tmp_path)
    assert ended.report.last_output == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 130])
def test_it_returns_the_exit_code(code: int, tmp_path: Path) -> None:
    assert run(f"sys.exit({code})", tmp_path).end.code == code


def test_a_reason_from_the_beat_stops_it_politely(tmp_path: Path) -> None:
    polite = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\n"
    ended = run(polite + HANGS, tmp_path, beat=once_ready("cancel"))
    assert (ended.end.code, ended.reason) == (130, "cancel")


def test_its_children_end_with_it(tmp_path: Path) -> None:
    ended = run(
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    while True: signal.pause()\n"
        "print(child)",
        tmp_path,
    )
    assert ended.end.code == 0
    assert is_gone(int(ended.report.last_output))


def test_it_is_ended_when_the_beat_fails(tmp_path: Path) -> None:
    pids: list[int] = []

    def fails(report: Report) -> str | None:
        if report.lines:
            pids.append(int(report.lines[0]))
            raise LookupError("the beat")
        return None

    with pytest.raises(LookupError, match="the beat"):
        run("print(os.getpid(), flush=True)\n" + HANGS, tmp_path, beat=fails)
    assert is_gone(pids[0])


def test_it_ends_with_whoever_watches_it(tmp_path: Path) -> None:
    inner = f"import os, signal; print(os.getpid(), file=open({str(tmp_path / 'pid')!r}, 'w')); signal.pause()"
    watcher = (
        "import os; from webapp.experiments.launch import watch; from webapp.guard import Limits\n"
        f"pid = lambda: os.path.exists({str(tmp_path / 'pid')!r}) and open({str(tmp_path / 'pid')!r}).read()\n"
        "dies = lambda report: os.kill(os.getpid(), 9) if pid() else None\n"
        f"watch([{sys.executable!r}, '-c', {inner!r}], limits=Limits(60, 10**10), mark='x', beat=dies, beat_s=0.05)"
    )
    assert subprocess.run([sys.executable, "-c", watcher], check=False).returncode == -signal.SIGKILL
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_a_killed_guard_takes_all_along_wherever_it_went(tmp_path: Path) -> None:
    """One that left its process group and its parents is found by the mark in its environment."""
    ended = run(LEAVES_A_DAEMON + HANGS, tmp_path, beat=kill_once_ready(tmp_path, signal.SIGKILL))
    assert why(ended.end, ended.report, LIMITS) == (
        "The guard of the measuring program ended (SIGKILL), and that with it."
    )
    assert is_gone(int(ended.report.last_output))


def test_a_guard_that_came_to_a_halt_counts_as_the_end_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GUARD_LATE_S", 0.5)
    ended = run(
        LEAVES_A_DAEMON + HANGS, tmp_path, limits=Limits(1, 10**10), beat=kill_once_ready(tmp_path, signal.SIGSTOP)
    )
    assert ended.end.stopped == "time"
    assert is_gone(int(ended.report.last_output))


#: Leaves behind a process that has a session of its own and no living parent, and prints its number.
LEAVES_A_DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, f'{os.getpid()}\\n'.encode())
        while True: signal.pause()
    os._exit(0)
os.wait()
"""


def kill_once_ready(tmp_path: Path, number: signal.Signals) -> Callable[[Report], None]:
    """A beat that signals the guard once the program has told of its progress and of its daemon."""

    def beat(report: Report) -> None:
        if report.progress and report.lines:
            for process in processes.carrying(launch.MARK, str(tmp_path)):
                with contextlib.suppress(psutil.NoSuchProcess):  # the one in the middle ends by itself
                    if process.ppid() == os.getpid():
                        process.send_signal(number)

    return beat


@pytest.mark.parametrize(
    ("code", "said", "sentence"),
    [
        (0, "", None),
        (2, "base.layers: 0 is not allowed", "base.layers: 0 is not allowed"),
        (2, "", "The measuring program refused the experiment and did not say why."),
        (3, "needs 61.1 GB and the device has 24.0 GB free", "needs 61.1 GB and the device has 24.0 GB free"),
        (3, "", "The measurement does not fit into this machine's memory."),
        (4, "zentorch is not installed", "zentorch is not installed"),
        (4, "", "A part that the experiment names is not available on this machine."),
        (130, "canceled", "The measuring program was told to stop by someone other than this product."),
        (1, "", "The measuring program ended with exit code 1: no output"),
        (1, "last words", "The measuring program ended with exit code 1: last words"),
        (-9, "", "The measuring program was killed (SIGKILL) by hand, or by the system for want of memory."),
        (-11, "", "The measuring program was killed (SIGSEGV)."),
        (-40, "", "The measuring program was killed (signal 40)."),
    ],
)
def test_every_end_has_one_sentence(code: int, said: str, sentence: str | None) -> None:
    assert why(End(code), Report(error=said), LIMITS) == sentence


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (End(-9, out_of_memory=False),
         "The measuring program was killed (SIGKILL) from outside; the system had memory left."),
        (End(-9, peak_bytes=14_900_000_000, out_of_memory=True),
         "The system killed the measuring program: out of memory, it used 14.9 GB of 15.0 GB when last seen."),
        (End(1, out_of_memory=True),
         "The measuring program ended with exit code 1 (meanwhile the system killed a process for want of memory): "
         "no output"),
        (End(-9, "memory", 15_200_000_000, False),
         "The measuring program was stopped: out of memory, it used 15.2 GB of 15.0 GB."),
        (End(-9, "time"), "The measuring program was stopped: it still ran after 900 s, the most it may take."),
        (End(0, out_of_memory=True), None),
    ],
)  # fmt: skip
def test_what_the_guard_saw_tells_the_cause(end: End, sentence: str | None) -> None:
    said = why(end, Report(), LIMITS)
    assert (said and said.replace("\N{NO-BREAK SPACE}", " ")) == sentence


def test_an_unexplained_end_shows_the_last_line_of_output() -> None:
    report = Report()
    for line in ("Traceback (most recent call last):", "ValueError: no", ""):
        report.take(line)
    assert why(End(1), report, LIMITS) == "The measuring program ended with exit code 1: ValueError: no"
