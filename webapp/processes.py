"""Long-running child processes that never outlive their parent. Knows nothing of Django.

Each child leads a session of its own, so Ctrl-C in the terminal reaches only the parent, which then stops its
children in order. Should the parent be killed outright, Linux signals them (``PR_SET_PDEATHSIG``); elsewhere the next
start finds them by their recorded ids.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

MAX_LOG_BYTES = 10_000_000
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class StartError(RuntimeError):
    """A part did not start; the message says which, why, and where its log is."""


@dataclass(frozen=True)
class Part:
    """One program to keep running: how it starts, when it is ready, which signal ends it in good order."""

    name: str
    command: Sequence[str]
    log: Path
    is_ready: Callable[[], bool] = lambda: True
    stop_signal: signal.Signals = signal.SIGTERM
    #: Sent when the parent dies without a word: the fastest end that loses nothing.
    orphan_signal: signal.Signals = signal.SIGTERM
    user: pwd.struct_passwd | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    directory: Path | None = None
    keep_fds: Sequence[int] = ()


def start(part: Part) -> subprocess.Popen[bytes]:
    """Start a part with its output appended to its log."""
    part.log.parent.mkdir(parents=True, exist_ok=True)
    _rotate(part.log)
    with part.log.open("ab") as log:
        return subprocess.Popen(
            part.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **part.env},
            cwd=part.directory,
            start_new_session=True,
            pass_fds=part.keep_fds,
            preexec_fn=die_with_parent(part.orphan_signal),  # runs after the change of user, which would undo it
            **as_user(part.user),
        )


def as_user(user: pwd.struct_passwd | None) -> dict[str, Any]:
    """Arguments of `subprocess.Popen` that hand the child to another account, with none of root's groups."""
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def wait_until_ready(part: Part, process: subprocess.Popen[bytes], within_s: float = 20.0) -> None:
    """Return once the part is ready. Raises `StartError` when it ends before that, or takes too long."""
    deadline = time.monotonic() + within_s
    while not part.is_ready():
        if process.poll() is not None:
            raise StartError(f"{part.name} ended as it started ({how_it_ended(process.returncode)}).{end_of(part.log)}")
        if time.monotonic() > deadline:
            raise StartError(f"{part.name} was not ready within {within_s:g} s.{end_of(part.log)}")
        time.sleep(0.05)


def stop(processes: Mapping[subprocess.Popen[bytes], signal.Signals], within_s: float) -> None:
    """Ask every process to end, wait together, and kill what is left of them and of what they started."""
    family = [relative for process in processes for relative in descendants(process.pid)]
    for process, number in processes.items():
        if process.poll() is None:
            process.send_signal(number)
    deadline = time.monotonic() + within_s
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    kill(family)


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def carrying(name: str, value: str) -> list[psutil.Process]:
    """Every process whose environment has ``name=value``, as what a marked process started has, wherever it went."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value:
                found.append(process)
        except (psutil.Error, OSError):  # it ended meanwhile, or is somebody else's
            continue
    return found


def kill(processes: Iterable[psutil.Process], patience_s: float = 2.0) -> None:
    """Kill what still runs and wait until it is gone. psutil compares start times, so a reused id is never hit."""
    alive = [process for process in processes if process.is_running()]
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=patience_s)


def die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """A ``preexec_fn`` that ties the child's life to the calling thread's; None where the system has no such tie."""
    if _libc is None:
        return None
    return partial(tie_to_parent, number, os.getpid())


def tie_to_parent(number: signal.Signals, parent: int) -> None:
    """Have the system send this process ``number`` when ``parent``, which must be its parent, ends. Linux only."""
    if _libc is None:
        return
    _libc.prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:  # it ended before the tie was made
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of all that descends from it and loses its own parent. Linux only."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap_orphans(own: Collection[int]) -> None:
    """Clear adopted processes that have ended out of the process table; ``own`` children are left to who waits for
    them."""
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess, ChildProcessError):
            if child.pid not in own and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    names = {number.value: number.name for number in signal.Signals}
    return names.get(-code, f"signal {-code}")


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))


def end_of(log: Path, lines: int = 5) -> str:
    """The last lines of a log, as a sentence carries them."""
    text = log.read_text(errors="replace").splitlines()[-lines:]
    return f" The end of {log}:\n" + "\n".join(text) if text else f" Its log {log} is empty."
