"""Is the memory that `capacity.fit_measurement` predicts what a measurement takes? Quoted in docs/measurement.md.

Each measurement is a process of its own; its peak is what the kernel reports of it.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from bench_worker.planning import plan_condition
from bench_worker.spec import Experiment

MODEL = "olmoe-1b-7b"
#: Expert backends: one that keeps a kernel for each row count, and one that keeps packed copies of the weights.
BACKENDS = ("deepspeed", "zentorch")
#: Executed layers: one, and all, where the machine has the room.
LAYERS = (1, 16)
WORKLOADS: tuple[dict[str, Any], ...] = (
    {"requests": 4, "concurrency": 2, "prompt_tokens": 128, "output_tokens": 8},
    {"requests": 16, "concurrency": 16, "prompt_tokens": 2048, "output_tokens": 8},
    {"requests": 16, "concurrency": 8, "output_tokens": 16},
)


class Failed(Exception):
    """A measurement ended without a result."""


def section() -> None:
    print(f"Peak memory of measuring {MODEL}, bfloat16, a process each")
    print(f"{'experts':>10}{'layers':>8}{'corner':>16}{'predicted GB':>14}{'peak GB':>10}{'predicted / peak':>18}")
    for backend, layers, workload in product(BACKENDS, LAYERS, WORKLOADS):
        base = {"model": MODEL, "layers": layers, "kernels": {"experts": backend}, "workload": workload}
        experiment = Experiment.model_validate({"base": base, "measure": {"max_seconds": 120}})
        predicted = _predicted(experiment)
        row = f"{backend:>10}{layers:>8}{experiment.runs()[0].condition:>16}{predicted / 1e9:>14.2f}"
        if predicted > 0.9 * psutil.virtual_memory().available:
            print(f"{row}  more than is free")
            continue
        try:
            peak = _peak(experiment)
        except Failed as failed:
            print(f"{row}  {failed}")
            continue
        print(f"{row}{peak / 1e9:>10.2f}{predicted / peak:>18.3f}")
    print()


def _predicted(experiment: Experiment) -> int:
    condition = plan_condition(experiment.runs(), {}, allow_paths=False)
    return condition.fit(condition.planned[0].spec, None).total_bytes


def _peak(experiment: Experiment) -> int:
    """The most memory that measuring ``experiment`` held at once, in bytes. Raises `Failed` in its own words."""
    with TemporaryDirectory(prefix="moescope-bench-") as folder:
        file, progress = Path(folder) / "experiment.json", Path(folder) / "progress"
        file.write_text(json.dumps(experiment.document()))
        command = [sys.executable, "-m", "bench_worker", "run", str(file), "--out", f"{folder}/result.json"]
        with progress.open("wb") as said:
            actions = [(os.POSIX_SPAWN_DUP2, said.fileno(), sys.stderr.fileno())]
            child = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions)
            _, status, used = os.wait4(child, 0)
        if status:
            raise Failed(progress.read_text().splitlines()[-1])
    return used.ru_maxrss * 1024
