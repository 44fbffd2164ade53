"""Runs one command within limits of time and memory, and lets nothing that it started survive. Knows nothing of Django.

``python -m webapp.guard --seconds S --bytes B COMMAND ...`` stands between a worker and the measuring program. It is a
process of its own, so the limits hold while the worker waits for its database, and the family ends when the worker is
killed. Standard input is its leash: when that closes, the command is stopped. What the command says goes to standard
error; one JSON object on standard output, an `End`, says how it ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from bench_worker import host_memory
from webapp import processes

ROOT = Path(__file__).resolve().parents[1]
#: How long a command may take from TERM to its end before it is killed.
PATIENCE_S = 4.0
LOOK_S = 0.1
#: Finding the family means reading the whole process table; its memory is looked at between two such readings too.
FAMILY_S = 1.0
#: Of what the system ends first when memory runs out (-1000 to 1000): the measurement, not the database beside it.
OOM_SCORE = 900


@dataclass(frozen=True)
class Limits:
    seconds: float
    bytes: int


@dataclass(frozen=True)
class End:
    """How the command ended. ``code`` as `subprocess` gives it: negative for a signal."""

    code: int
    #: Why the guard stopped it: ``asked``, ``time`` or ``memory``; None where it ended by itself.
    stopped: str | None = None
    #: Most memory that the guard saw the family hold.
    peak_bytes: int = 0
    #: Whether the system itself killed a process for want of memory meanwhile; None where it does not tell.
    out_of_memory: bool | None = None


def hold(command: Sequence[str], limits: Limits) -> tuple[End, str]:
    """Have a guard, a process of its own, run ``command``; how that ended, and all that it said.

    For what says little. Should this process end meanwhile, so does the command.
    """
    leash, held = os.pipe()
    try:
        guarded = subprocess.run(
            [sys.executable, "-m", "webapp.guard", f"--seconds={limits.seconds}", f"--bytes={limits.bytes}", *command],
            cwd=ROOT, stdin=leash, capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
    finally:
        os.close(leash)
        os.close(held)
    end = End(**json.loads(guarded.stdout)) if guarded.stdout else End(guarded.returncode)
    return end, guarded.stderr


def run(command: Sequence[str], limits: Limits, leash: int) -> End:
    """Run ``command`` to its end, at the latest until the file descriptor ``leash`` closes."""
    processes.adopt_orphans()
    kills_before = host_memory.oom_kills()
    program = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=sys.stderr, process_group=0, preexec_fn=_first_to_go(os.getpid())
    )
    deadline, family, stopped = time.monotonic() + limits.seconds, Family(limits.bytes), None
    while stopped is None and program.poll() is None:
        if select.select([leash], [], [], LOOK_S)[0]:
            stopped = "asked"
        elif time.monotonic() > deadline:
            stopped = "time"
        elif family.takes_too_much():
            stopped = "memory"
    if program.poll() is None and stopped != "memory":  # what grows is not waited for
        _ask_to_end(program)
    _end_family(program)
    kills = host_memory.oom_kills()
    out_of_memory = None if kills is None or kills_before is None else kills > kills_before
    return End(program.returncode, stopped, family.peak_bytes, out_of_memory)


class Family:
    """All that descends from this process, and the memory that it holds."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes, self.peak_bytes = limit_bytes, 0
        self._members: list[psutil.Process] = []
        self._found_at = self._counted_at = float("-inf")

    def takes_too_much(self) -> bool:
        """Look again. The quick count takes pages that a fork shares for each one's own, so above the limit the exact
        one decides; it walks through page tables, hence not at every look."""
        now = time.monotonic()
        if now - self._found_at >= FAMILY_S:
            self._members, self._found_at = processes.descendants(os.getpid()), now
        used = quick_bytes(self._members)
        if used > self.limit_bytes:
            if now - self._counted_at < FAMILY_S:
                return False
            used, self._counted_at = exact_bytes(self._members), now
        self.peak_bytes = max(self.peak_bytes, used)
        return used > self.limit_bytes


def quick_bytes(family: Sequence[psutil.Process]) -> int:
    """Memory of all, what they share counted for the one that shares most."""
    private = shared = 0
    for process in family:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_info()
            of_others = getattr(memory, "shared", 0)  # Linux
            private += memory.rss - of_others
            shared = max(shared, of_others)
    return private + shared


def exact_bytes(family: Sequence[psutil.Process]) -> int:
    """Memory of all, every shared page divided among those who share it where the system says how (Linux)."""
    total = 0
    for process in family:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_full_info()
            total += getattr(memory, "pss", memory.uss)
    return total


def _first_to_go(guard: int) -> Callable[[], None]:
    """Before the command starts: it is killed with its guard, and before others where the system lacks memory."""

    def prepare() -> None:
        processes.tie_to_parent(signal.SIGKILL, guard)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))

    return prepare


def _ask_to_end(program: subprocess.Popen[bytes]) -> None:
    _signal_group(program, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(PATIENCE_S)


def _end_family(program: subprocess.Popen[bytes]) -> None:
    """Kill the command and whatever else descends from it, and what that starts meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    _signal_group(program, signal.SIGKILL)
    program.wait()
    while (left := processes.descendants(os.getpid())) and time.monotonic() < deadline:
        processes.kill(left)


def _signal_group(program: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # nothing of the group is left
        os.killpg(program.pid, number)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m webapp.guard", description="Runs a command within limits.")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    print(json.dumps(asdict(run(given.command, Limits(given.seconds, given.bytes), leash=sys.stdin.fileno()))))


if __name__ == "__main__":
    main()
