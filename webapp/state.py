"""What the running product leaves in its data directory for the programs beside it. Knows nothing of Django.

``up`` writes ``state.json`` when its servers are ready and removes it when it stops; ``manage.py bench`` and the
like find the database and the broker there. A file whose writer is gone counts as none.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import psutil


@dataclass(frozen=True)
class ProcessId:
    """A process, told apart from a later one with the same number by when it started."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> Self:
        return cls(pid, psutil.Process(pid).create_time())

    def process(self) -> psutil.Process | None:
        """The process itself while it lives."""
        try:
            process = psutil.Process(self.pid)
            return process if process.create_time() == self.started else None
        except psutil.NoSuchProcess:
            return None


@dataclass(frozen=True)
class State:
    """A running product: where its servers listen (empty until they do), and which processes belong to it."""

    supervisor: ProcessId
    database_url: str
    broker_url: str
    #: Directory of the embedded servers' sockets, or empty where none are embedded.
    sockets: str = ""
    parts: dict[str, ProcessId] = field(default_factory=dict)

    def write(self, data: Path) -> None:
        _write_privately(data / "state.json", json.dumps(asdict(self), indent=1))


def read_any(data: Path) -> State | None:
    """The last state that was written, also one whose writer is gone."""
    try:
        document = json.loads((data / "state.json").read_text())
    except FileNotFoundError:
        return None
    return State(
        **document
        | {
            "supervisor": ProcessId(**document["supervisor"]),
            "parts": {name: ProcessId(**process) for name, process in document["parts"].items()},
        }
    )


def read(data: Path) -> State | None:
    """The product that runs on ``data``, if one does."""
    state = read_any(data)
    return state if state and state.supervisor.process() else None


def remove(data: Path) -> None:
    (data / "state.json").unlink(missing_ok=True)


def secret_key(data: Path) -> str | None:
    """The key that `make_secret_key` left in ``data``."""
    file = data / "secret-key"
    return file.read_text().strip() if file.exists() else None


def make_secret_key(data: Path) -> None:
    """Make the product's secret key, once; only its owner may read it."""
    if secret_key(data) is None:
        _write_privately(data / "secret-key", secrets.token_urlsafe(50))


def _write_privately(file: Path, text: str) -> None:
    """Whole or not at all, and never readable by others."""
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
    unfinished.replace(file)
