"""The directory of an attempt: its inputs, its last output and its result, for as long as the attempt lasts.

Whoever carries the attempt out holds a lock on the directory, which the system takes back when that process ends,
however it ends. A directory without a holder is what a worker left behind.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings

from webapp.experiments.queue import Fence

EXPERIMENT, TRACES, RECORDINGS = "experiment.json", "traces", "recordings"
OUTPUT, RESULT = "output.txt", "result.json"


@contextmanager
def begun(fence: Fence) -> Iterator[Path]:
    """An empty directory, held while the block runs. It is removed if the block ends well, else left behind."""
    directory = home() / f"{fence.experiment}-{fence.attempt}"
    with _alone():
        shutil.rmtree(directory, ignore_errors=True)  # of an earlier database on this data
        directory.mkdir()
        lock = _lock(directory)
    assert lock is not None
    try:
        yield directory
        shutil.rmtree(directory)
    finally:
        os.close(lock)


@contextmanager
def left_behind(directory: Path) -> Iterator[bool]:
    """Hold a directory that nobody else holds and remove it if the block ends well. False: somebody does."""
    with _alone():
        lock = _lock(directory)
    if lock is None:
        yield False
        return
    try:
        yield True
        shutil.rmtree(directory)
    finally:
        os.close(lock)


def directories() -> list[Path]:
    return sorted(path for path in home().iterdir() if path.is_dir())


def fence_of(directory: Path) -> Fence:
    experiment, attempt = directory.name.split("-")
    return Fence(int(experiment), int(attempt))


def refuse_without_a_place() -> None:
    """End this program with one sentence where no directory can be made: every experiment would wait in vain."""
    try:
        with _alone():
            return
    except OSError as error:
        directory = settings.MOESCOPE_DATA / "attempts"
        sys.exit(f"A worker can't write into {directory} ({error.strerror}): name another place with MOESCOPE_DATA.")


def home() -> Path:
    """Where they lie: on the worker's own disk."""
    directory: Path = settings.MOESCOPE_DATA / "attempts"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextmanager
def _alone() -> Iterator[None]:
    """Between making a directory and holding it, nobody looks for directories without a holder."""
    with (home() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _lock(directory: Path) -> int | None:
    """A descriptor that holds ``directory``; None where it is held already, or gone."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
