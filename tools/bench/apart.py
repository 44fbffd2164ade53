"""A measurement in a process of its own, with the most memory that it held."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench_worker.planning import plan_condition
from bench_worker.result import Result
from bench_worker.spec import Experiment


class Failed(Exception):
    """A measurement ended without a result."""


class Measured(NamedTuple):
    result: Result
    peak_bytes: int
    seconds: float


def predicted_bytes(experiment: Experiment) -> int:
    """What `bench_worker.capacity.fit_measurement` says of the first run of ``experiment``."""
    condition = plan_condition(experiment.runs()[:1], {}, allow_paths=True)
    return condition.fit(condition.planned[0].spec, None).total_bytes


def measure(experiment: Experiment) -> Measured:
    """Raises `Failed` in the measuring program's own words."""
    start = time.monotonic()
    with TemporaryDirectory(prefix="moescope-bench-") as folder:
        file, progress, found = (Path(folder, name) for name in ("experiment.json", "progress", "result.json"))
        file.write_text(json.dumps(experiment.document()))
        command = [sys.executable, "-m", "bench_worker", "run", str(file), "--out", str(found)]
        with progress.open("wb") as said:
            actions = [(os.POSIX_SPAWN_DUP2, said.fileno(), sys.stderr.fileno())]
            child = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions)
            _, status, used = os.wait4(child, 0)
        if status:
            raise Failed(progress.read_text().splitlines()[-1])
        result = Result.model_validate_json(found.read_bytes())
    return Measured(result, used.ru_maxrss * 1024, time.monotonic() - start)
