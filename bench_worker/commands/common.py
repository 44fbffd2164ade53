"""What commands share: exit codes, how they speak, and the files that they are given."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench_worker.errors import SpecError
from bench_worker.result import Run

DONE, FAILED, BAD_EXPERIMENT, DOES_NOT_FIT, UNAVAILABLE, CANCELED = 0, 1, 2, 3, 4, 130


class StderrReport:
    """Progress as JSON lines on standard error, at most a few a second."""

    def __init__(self) -> None:
        self._last, self._phase = 0.0, ""

    def progress(self, phase: str, done: int, total: int, variant: str = "", condition: str = "") -> None:
        now = time.monotonic()
        if phase == self._phase and now - self._last < 0.3 and done != total:
            return
        self._last, self._phase = now, phase
        emit(event="progress", phase=phase, done=done, total=total, variant=variant, condition=condition)

    def finished(self, run: Run) -> None:
        emit(
            event="run",
            run=run.model_dump(mode="json", include={"variant", "condition", "status", "summary", "origins"}),
        )


class SilentReport:
    """The report of every rank but the first."""

    def progress(self, phase: str, done: int, total: int, variant: str = "", condition: str = "") -> None:
        pass

    def finished(self, run: Run) -> None:
        pass


def emit(**line: Any) -> None:
    sys.stderr.write(json.dumps(line) + "\n")  # at once, so that another process's line can't come between
    sys.stderr.flush()


def fail(code: int, *messages: str) -> int:
    """Say what went wrong, one sentence a line: to a person in words, to a program as an event of the protocol."""
    message = "\n".join(messages)
    if sys.stderr.isatty():
        print(message, file=sys.stderr)
    else:
        emit(event="error", message=message)
    return code


def files_in(folder: Path | None, option: str, suffix: str) -> dict[str, Path]:
    """The traces or recordings that ``option`` offers, by name."""
    if folder is None:
        return {}
    if not folder.is_dir():
        raise SpecError(option, str(folder), f"{folder} is not a folder")
    return {path.stem: path for path in folder.glob(f"*{suffix}")}


def refuse_unwritable(out: Path) -> None:
    """Raise `SpecError` for a place where no result can be written: before hours of measuring, not after."""
    if not out.parent.is_dir():
        raise SpecError("--out", str(out), f"{out.parent} is not a folder")
    if out.is_dir():
        raise SpecError("--out", str(out), f"{out} is a folder; name a file in it")
    if not os.access(out.parent, os.W_OK):
        raise SpecError("--out", str(out), f"{out.parent} can't be written to")


def written(out: Path, document: str) -> int:
    """Write ``document`` so that a reader never sees half of it."""
    partial = out.with_name(f"{out.name}.part")
    try:
        partial.write_text(document, encoding="utf-8")
        partial.replace(out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        return fail(FAILED, f"{out} can't be written: {error.strerror}")
    return DONE
