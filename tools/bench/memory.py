"""Is the memory that `capacity.fit_measurement` predicts what a measurement takes? Quoted in docs/measurement.md.

Each measurement is a process of its own; its peak is what the kernel reports of it.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import psutil

from bench_worker.spec import Experiment
from tools.bench import apart

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


def section() -> None:
    print(f"Peak memory of measuring {MODEL}, bfloat16, a process each")
    print(f"{'experts':>10}{'layers':>8}{'corner':>16}{'predicted GB':>14}{'peak GB':>10}{'predicted / peak':>18}")
    for backend, layers, workload in product(BACKENDS, LAYERS, WORKLOADS):
        base = {"model": MODEL, "layers": layers, "kernels": {"experts": backend}, "workload": workload}
        experiment = Experiment.model_validate({"base": base, "measure": {"max_seconds": 120}})
        predicted = apart.predicted_bytes(experiment)
        row = f"{backend:>10}{layers:>8}{experiment.runs()[0].condition:>16}{predicted / 1e9:>14.2f}"
        if predicted > 0.9 * psutil.virtual_memory().available:
            print(f"{row}  more than is free")
            continue
        try:
            peak = apart.measure(experiment).peak_bytes
        except apart.Failed as failed:
            print(f"{row}  {failed}")
            continue
        print(f"{row}{peak / 1e9:>10.2f}{predicted / peak:>18.3f}")
    print()
