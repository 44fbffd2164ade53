"""One of two ranks on hosts of their own: exchanges rows and nothing else, and prints when they were on the wire."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from bench_worker.parallel.all_to_all import all_to_all
from tools.bench.two_hosts import sent_bytes

ROWS_BYTES, ROUNDS = 1 << 20, 9
#: The last rank comes this much later than the first, so that it is always rank 1.
LATE_S = 0.005
#: By name: the product's, and gloo's.
KINDS: dict[str, Callable[..., Any]] = {"own": all_to_all, "gloo": dist.all_to_all_single}
#: A way's rows are on the wire from this share of its bytes to this one.
FROM, TO = 0.05, 0.95
LOOK_S = 0.0005


def main(kind: str, address: str, interface: str, rank: int, both_ways: bool) -> None:
    """``both_ways``: both ranks have rows; else rank 0 has, which comes first."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    sizes = [ROWS_BYTES, ROWS_BYTES if both_ways else 0]
    rows = torch.ones(sizes[rank], dtype=torch.uint8)
    into = torch.empty(sizes[1 - rank], dtype=torch.uint8)
    splits, into_splits = [0, 0], [0, 0]
    splits[1 - rank], into_splits[1 - rank] = len(rows), len(into)
    rounds = []
    for _ in range(ROUNDS):
        dist.barrier()
        time.sleep(LATE_S * rank)
        rounds.append(_watched(interface, lambda: KINDS[kind](into, rows, into_splits, splits)))
    print(json.dumps(rounds))
    dist.barrier()
    dist.destroy_process_group()


def _watched(interface: str, exchange: Callable[[], Any]) -> dict[str, Any]:
    """When ``exchange`` began and ended, and when this rank's rows began and ended to leave its host, in ms of a clock
    that both hosts share; ``left_bytes``: how much had left by the end of the exchange."""
    looks, done = [(_now_ms(), sent_bytes(interface))], threading.Event()

    def look() -> None:
        while not done.wait(LOOK_S):
            looks.append((_now_ms(), sent_bytes(interface)))

    watch = threading.Thread(target=look)
    watch.start()
    came_ms, before = looks[0]
    exchange()
    ended_ms, left_bytes = _now_ms(), sent_bytes(interface) - before
    dist.barrier()  # both ends have all rows
    done.set()
    watch.join()
    total = looks[-1][1] - before
    on_wire = [next(at for at, sent in looks if sent - before >= share * total) for share in (FROM, TO)]
    return {"came_ms": came_ms, "ended_ms": ended_ms, "left_bytes": left_bytes, "on_wire_ms": on_wire}


def _now_ms() -> float:
    return time.perf_counter_ns() / 1e6


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "both")
