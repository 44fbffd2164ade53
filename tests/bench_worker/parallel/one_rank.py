"""One rank of a distributed test: computes every case, and writes what came of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from bench_worker.parallel.exchange import Distributed
from bench_worker.parallel.variant import ParallelVariant
from tests.bench_worker.parallel.make import CPU, fitted, network, outputs, spec, step, streams


def main(folder: Path, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    cases = json.loads((folder / "cases.json").read_text())
    found = []
    with torch.inference_mode():
        for case in cases:
            tokens = {int(request): count for request, count in case.pop("tokens").items()}
            of = spec(Path(case.pop("config")), **case)
            made = network(of)
            real = Distributed(made.model.hidden, made.dtype, CPU, tp=of.parallel.layout.tp)
            variant = ParallelVariant(of, made, fitted(of), real, topology=None)
            inputs = step(made, tokens)
            done = variant.run(inputs)
            check, whole = variant.check(), variant.whole(inputs)
            found.append({
                "outputs": outputs(variant, inputs)[0], "rows": done.rows, "computed": done.computed,
                "assignments": done.outcome.rows, "check": check.rel_error,
                "group_bytes": done.group_bytes,
                "stream": streams(variant, inputs)[0] if of.kernels.attention else None,
                "timeline": (done.timeline.stages_us, done.timeline.idle_us), "whole_us": whole.layers_us(0),
            })  # fmt: skip
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
