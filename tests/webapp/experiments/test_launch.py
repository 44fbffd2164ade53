"""The measuring program as a process: how it ends, and that nothing of it is left."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.webapp.experiments.waiting import wait_until
from webapp.experiments import launch
from webapp.experiments.launch import Ended, Report, watch, why

SAY = """
import json, os, signal, sys, time
def say(**event): print(json.dumps(event), file=sys.stderr, flush=True)
"""
#: A program that runs until it is stopped, and says when it is ready.
HANGS = "say(event='progress', phase='measure', done=1, total=2)\nwhile True: signal.pause()"


def program(code: str) -> list[str]:
    return [sys.executable, "-c", SAY + code]


def run(
    code: str,
    tmp_path: Path,
    *,
    limit_s: float = 60,
    beat: Callable[[Report], str | None] = lambda report: None,
) -> Ended:
    return watch(program(code), directory=tmp_path, limit_s=limit_s, beat=beat, beat_s=0.05)


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
    assert (ended.code, ended.stopped) == (0, None)
    assert ended.report.progress == {"phase": "check", "done": 0, "total": 1}
    assert ended.report.runs == [{"variant": "base"}]
    assert list(ended.report.lines) == ["plain text", "{not json"]


def test_it_keeps_the_last_lines_only(tmp_path: Path) -> None:
    ended = run("for n in range(1000): print(n)", tmp_path)
    assert ended.report.last_output.split("\n") == [str(n) for n in range(800, 1000)]


def test_it_runs_in_the_given_directory_and_keeps_standard_input_open(tmp_path: Path) -> None:
    ended = run("import select; print(os.getcwd(), select.select([0], [], [], 0)[0])", tmp_path)
    assert ended.report.last_output == f"{tmp_path} []"


def test_output_that_is_not_text_stays_storable(tmp_path: Path) -> None:
    ended = run(r"sys.stdout.buffer.write(b'a\x00\xffb\n')", tmp_path)
    assert ended.report.last_output == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 130])
def test_it_returns_the_exit_code(code: int, tmp_path: Path) -> None:
    assert run(f"sys.exit({code})", tmp_path).code == code


def test_a_reason_from_the_beat_stops_it_politely(tmp_path: Path) -> None:
    polite = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\n"
    ended = run(polite + HANGS, tmp_path, beat=once_ready("cancel"))
    assert (ended.code, ended.stopped) == (130, "cancel")


def test_one_that_ignores_term_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PATIENCE_S", 0.2)
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HANGS
    ended = run(stubborn, tmp_path, beat=once_ready("cancel"))
    assert (ended.code, ended.stopped) == (-signal.SIGKILL, "cancel")


def test_one_that_runs_past_the_limit_is_stopped(tmp_path: Path) -> None:
    ended = run(HANGS, tmp_path, limit_s=0.5)
    assert ended.stopped == "limit"
    assert why(ended, 900) == "The measuring program was stopped: it still ran after 900 s, the most it may take."


def test_its_children_end_with_it(tmp_path: Path) -> None:
    ended = run(
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    while True: signal.pause()\n"
        "print(child)",
        tmp_path,
    )
    assert ended.code == 0
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


def test_it_notices_that_its_watcher_was_killed(tmp_path: Path) -> None:
    """What ``--stop-on-eof`` builds on: the pipe on standard input closes with the process that holds it."""
    inner = f"import sys; sys.stdin.buffer.read(); open({str(tmp_path / 'eof')!r}, 'w')"
    watcher = (
        "import os, sys; from pathlib import Path; from webapp.experiments.launch import watch\n"
        "dies = lambda report: os.kill(os.getpid(), 9)\n"
        f"watch([sys.executable, '-c', {inner!r}], directory=Path('.'), limit_s=60, beat=dies)"
    )
    assert subprocess.run([sys.executable, "-c", watcher], check=False).returncode == -signal.SIGKILL
    assert wait_until((tmp_path / "eof").exists)


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
    assert why(Ended(code, None, Report(error=said)), limit_s=900) == sentence


def test_an_unexplained_end_shows_the_last_line_of_output() -> None:
    report = Report()
    for line in ("Traceback (most recent call last):", "ValueError: no", ""):
        report.take(line)
    assert why(Ended(1, None, report), 900) == "The measuring program ended with exit code 1: ValueError: no"


def is_gone(pid: int) -> bool:
    return wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
