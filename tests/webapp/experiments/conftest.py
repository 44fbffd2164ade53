"""What tests of `manage.py bench` share: a file, and a worker in the command's pauses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.webapp.experiments import make
from webapp.experiments import launch
from webapp.experiments.management import queueing
from webapp.experiments.perform import perform_next


@pytest.fixture
def worker_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's first pause is when a worker carries the experiment out."""

    def work(seconds: float) -> None:
        perform_next("default", lambda: False)

    monkeypatch.setattr(queueing.time, "sleep", work)
    monkeypatch.setattr(launch, "PROGRAM", (sys.executable, str(Path(__file__).with_name("fake_worker.py"))))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.json"
    path.write_text(json.dumps(make.document()))
    return path
