"""A running product to do harm to: its parts as processes, what it says, and what of it should not be there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.webapp.experiments.waiting import wait_until
from webapp import processes
from webapp.experiments.launch import MARK

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = "tests.faults.settings"
#: What takes longer on a busy machine is stuck.
PATIENCE_S = 120.0
PARTS = ("Postgres", "Valkey", "Web", "Worker", "Beat")


class Product:
    """``manage.py up`` on a data directory of its own."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.start()

    def start(self) -> None:
        self.up = subprocess.Popen(
            [sys.executable, "manage.py", "up", "--port", "0", "--data", str(self.data)],
            cwd=ROOT,
            env=own_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []
        threading.Thread(target=self._listen, args=(self.up,), daemon=True).start()
        try:
            self.address = self.says(r"(http://127\.0\.0\.1:\d+)/sign-in/")[1]
        except BaseException:
            self.up.kill()
            raise

    def _listen(self, up: subprocess.Popen[str]) -> None:
        assert up.stdout is not None
        for line in up.stdout:
            self.said.append(line)

    def stop(self) -> None:
        self.up.send_signal(signal.SIGINT)
        self.up.wait(PATIENCE_S)

    def says(self, pattern: str, since: int = 0) -> re.Match[str]:
        """Wait until it has said something like ``pattern``, after so many lines."""

        def found() -> re.Match[str] | None:
            return re.search(pattern, "".join(self.said[since:]))

        assert wait_until(lambda: found() is not None, PATIENCE_S), f"it did not say {pattern!r} but:\n{self.said}"
        match = found()
        assert match is not None
        return match

    def part(self, name: str) -> psutil.Process:
        """The process that now stands for Web, Worker, Beat, Postgres or Valkey."""
        return psutil.Process(json.loads((self.data / "state.json").read_text())["parts"][name]["pid"])

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a part, and see the product say so."""
        already = len(self.said)
        self.part(name).send_signal(number)
        self.says(rf"{name} ended \(.*\); starting it again in 1 s", already)

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/healthz", timeout=10) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def child_of_worker(self) -> psutil.Process:
        """The process that runs the worker's tasks."""
        [child] = [child for child in self.part("Worker").children() if "webapp.celery" in child.cmdline()]
        return child

    @contextmanager
    def another_worker(self, **environment: str) -> Iterator[psutil.Popen]:
        """A second worker, as on another machine; told to stop at the end."""
        model = self.part("Worker")
        command = [word.replace("moescope-", "another-") for word in model.cmdline()]
        if pool := environment.get("MOESCOPE_POOL"):
            command = [f"--queues={pool}" if word.startswith("--queues=") else word for word in command]
        with (self.data / "log" / "another-worker.log").open("ab") as log:
            worker = psutil.Popen(
                command, cwd=ROOT, env=model.environ() | environment, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield worker
            worker.terminate()
            worker.wait(PATIENCE_S)
        finally:
            processes.kill([worker, *processes.descendants(worker.pid)])

    def measuring(self, attempt: str) -> list[psutil.Process]:
        """The guard, the program and all that these started, of an attempt (``pk-number``)."""
        return processes.carrying(MARK, f"{self.data}/attempts/{attempt}")

    def orphans(self) -> list[psutil.Process]:
        """What is there while nothing runs and should not be: measuring processes, and what belongs to no part."""
        parts = [self.part(name).pid for name in PARTS]
        family = {self.up.pid, *parts, *(child.pid for part in parts for child in processes.descendants(part))}
        return [process for process in self.all_processes() if process.pid not in family or _measures(process)]

    def all_processes(self) -> list[psutil.Process]:
        return processes.carrying("MOESCOPE_DATA", str(self.data))


def _measures(process: psutil.Process) -> bool:
    try:
        return MARK in process.environ()
    except psutil.Error:
        return False


def own_environment() -> dict[str, str]:
    """This process's without what it says about servers: a test run has some of its own."""
    foreign = ("DATABASE_URL", "BROKER_URL", "SECRET_KEY", "ALLOWED_HOSTS", "MOESCOPE_POOL", "MOESCOPE_DATA")
    environment = {name: value for name, value in os.environ.items() if name not in foreign}
    return environment | {"DJANGO_SETTINGS_MODULE": SETTINGS}
