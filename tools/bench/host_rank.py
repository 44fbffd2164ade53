"""One of two ranks on hosts of their own: runs steps, and prints what it measured, counted and put on the wire."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from bench_worker import models
from bench_worker.network import Network
from bench_worker.parallel.exchange import Distributed
from bench_worker.parallel.fitted import Fitted
from bench_worker.parallel.placement import place
from bench_worker.parallel.step import bytes_by_domain
from bench_worker.parallel.variant import ParallelVariant
from bench_worker.planning import network_key
from bench_worker.spec import Experiment, Library
from bench_worker.step_input import StepSource
from bench_worker.step_layout import one_request, one_token_each
from tools.bench.two_hosts import sent_bytes

TOKENS, WARM_UP = 1024, 3


@torch.inference_mode()
def main(config: Path, address: str, interface: str, rank: int, steps: int, both_ways: bool) -> None:
    """``both_ways``: both ranks have tokens; else rank 0 has all, so that an exchange has one direction."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    cpu = torch.device("cpu")
    parallel = {"mode": "distributed", "layout": {"tp": 1, "dp": 2, "nodes": 2}}
    document = {
        "model": str(config), "parallel": parallel, "load": {"profile": "uniform"},
        "kernels": {"attention": False, "dtype": "float32"},
    }  # fmt: skip
    spec = Experiment.model_validate({"base": document}, context=Library(allow_paths=True)).base
    network = Network(models.load(spec.model, allow_paths=True), network_key(spec), cpu)
    fitted = Fitted(place(np.ones((1, network.model.experts)), 2, "contiguous"), "nothing", None)
    real = Distributed(network.model.hidden, network.dtype, cpu)
    variant = ParallelVariant(spec, network, fitted, real, None)
    source, layout = StepSource(0), one_token_each(TOKENS, cpu) if both_ways else one_request(TOKENS, cpu)
    inputs = [source.make(network, spec.load, step, layout) for step in range(WARM_UP + steps)]
    for step in inputs[:WARM_UP]:
        variant.run(step)
    real.meet()
    before, done = sent_bytes(interface), [variant.run(step) for step in inputs[WARM_UP:]]
    real.meet()
    on_the_wire = sent_bytes(interface) - before
    nodes = variant.layout.node_of_rank()
    counted = [bytes_by_domain(one.rows[0] * variant.row_bytes, nodes)["inter_node"][rank] for one in done]
    stages = {
        stage: statistics.median(float(one.timeline.stages_us[stage][rank]) for one in done)
        for stage in ("dispatch", "experts", "combine.transfer")
    }
    busiest = statistics.median(int(max(one.rows[0, 0, 1], one.rows[0, 1, 0])) * variant.row_bytes for one in done)
    print(json.dumps({
        "stages_us": stages, "counted_bytes": int(sum(counted)), "wire_bytes": on_the_wire,
        "busiest_way_bytes": busiest,
    }))  # fmt: skip
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6] == "both")
