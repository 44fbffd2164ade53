"""One command within limits: as a process of its own, as a worker starts it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.webapp.experiments.waiting import is_gone, wait_until
from webapp import guard
from webapp.guard import End, Limits

ROOT = Path(__file__).resolve().parents[2]
WIDE = Limits(seconds=60, bytes=10**10)
READY = "import os, signal, sys, time; print(os.getpid(), flush=True); "
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")


def start(code: str, limits: Limits = WIDE) -> subprocess.Popen[str]:
    """A guard with ``python -c code`` on its leash; what the command prints comes from standard error."""
    command = [sys.executable, "-m", "webapp.guard", f"--seconds={limits.seconds}", f"--bytes={limits.bytes}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*command, sys.executable, "-c", code], cwd=ROOT, text=True, **pipes)


def end_of(guarded: subprocess.Popen[str]) -> tuple[End, str]:
    """Its report, and the rest of what its command printed. The leash stays as it is."""
    assert guarded.stdout is not None
    assert guarded.stderr is not None
    said = guarded.stderr.read()
    return End(**json.loads(guarded.stdout.read())), said


def first_line(guarded: subprocess.Popen[str]) -> str:
    assert guarded.stderr is not None
    return guarded.stderr.readline().strip()


@pytest.mark.parametrize("code", [0, 3, 130])
def test_an_end_of_its_own_is_told_with_its_code(code: int) -> None:
    with start(f"print('hello'); raise SystemExit({code})") as guarded:
        end, said = end_of(guarded)
    assert (end.code, end.stopped, said) == (code, None, "hello\n")


def test_a_caller_that_waits_is_told_the_end_and_all_that_was_said() -> None:
    end, said = guard.hold([sys.executable, "-c", "print('hello'); raise SystemExit(3)"], WIDE)
    assert (end.code, end.stopped, said) == (3, None, "hello\n")
    end, _ = guard.hold([sys.executable, "-c", READY + "time.sleep(60)"], Limits(seconds=0.5, bytes=10**10))
    assert end.stopped == "time"


def test_a_signal_is_told_as_one() -> None:
    with start(READY + "os.kill(os.getpid(), 11)") as guarded:
        assert end_of(guarded)[0].code == -signal.SIGSEGV


def test_the_command_is_asked_to_end_when_the_leash_closes() -> None:
    with start(
        "import signal, sys; signal.signal(15, lambda *_: sys.exit(130)); " + READY + "signal.pause()"
    ) as guarded:
        first_line(guarded)
        assert guarded.stdin is not None
        guarded.stdin.close()
        end, _ = end_of(guarded)
    assert (end.code, end.stopped) == (130, "asked")


IMPATIENT = (
    "import os, sys; from webapp import guard; guard.PATIENCE_S = 0.3; leash, end = os.pipe(); os.close(end)\n"
    "print(guard.run([sys.executable, '-c', sys.argv[1]], guard.Limits(60, 10**10), leash).stopped)"
)


def test_a_deaf_command_is_killed() -> None:
    """A guard without much patience, whose leash was let go."""
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"
    command = [sys.executable, "-c", IMPATIENT, deaf]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "asked\n"


def test_too_long_is_stopped() -> None:
    with start(READY + "signal.pause()", Limits(seconds=0.5, bytes=10**10)) as guarded:
        end, said = end_of(guarded)
    assert (end.code, end.stopped) == (-signal.SIGTERM, "time")
    assert is_gone(int(said))


def test_too_much_memory_is_stopped_and_the_amount_told() -> None:
    """Step by step, in a process that the command started: the whole family counts."""
    eats = (
        "import os, signal\nif os.fork(): os.wait()\nheld = []\nwhile True: held.append(bytearray(os.urandom(1 << 20)))"
    )
    with start(eats, Limits(seconds=60, bytes=200_000_000)) as guarded:
        end, _ = end_of(guarded)
    assert (end.code, end.stopped) == (-signal.SIGKILL, "memory")
    assert 200_000_000 < end.peak_bytes < 2_000_000_000


def test_memory_that_a_fork_shares_counts_once() -> None:
    """Three processes look at the same 150 MB; each alone would be charged with them."""
    shares = "import os, signal; held = os.urandom(150_000_000); os.fork() and os.fork(); signal.pause()"
    with start(shares, Limits(seconds=2, bytes=250_000_000)) as guarded:
        end, _ = end_of(guarded)
    assert end.stopped == "time"
    assert 150_000_000 < end.peak_bytes < 250_000_000


@linux_only
def test_what_left_its_group_and_its_parents_and_its_environment_is_ended_too() -> None:
    leaves = (
        "import os, sys\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.execve(sys.executable, [sys.executable, '-c', "
        "'import os, signal; print(os.getpid(), flush=True); signal.pause()'], {})\n    os._exit(0)\n"
        "os.wait()\nsys.stdin.readline()"
    )
    with start(leaves, Limits(seconds=60, bytes=10**10)) as guarded:
        daemon = psutil.Process(int(first_line(guarded)))
        assert guarded.stdin is not None
        guarded.stdin.close()
        end_of(guarded)
    assert is_gone(daemon.pid)


@linux_only
def test_the_command_goes_with_a_killed_guard_and_before_others_when_memory_is_short() -> None:
    with start(READY + "signal.pause()") as guarded:
        program = int(first_line(guarded))
        assert Path(f"/proc/{program}/oom_score_adj").read_text().strip() == str(guard.OOM_SCORE)
        guarded.kill()
    assert is_gone(program)


def test_a_guard_needs_no_django() -> None:
    code = "import sys, webapp.guard; sys.exit('django' in sys.modules or 'celery' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_quick_count_takes_what_is_shared_once() -> None:
    def process(rss: int, shared: int) -> Any:
        return SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=rss, shared=shared))

    assert guard.quick_bytes([process(10, 4), process(20, 5)]) == 6 + 15 + 5


def test_one_that_ends_while_it_is_counted_counts_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = psutil.Process(gone.pid)
    gone.kill()
    gone.wait()
    assert wait_until(lambda: not process.is_running())
    assert guard.quick_bytes([process]) == guard.exact_bytes([process]) == 0
