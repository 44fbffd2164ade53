"""Four real ranks in two tensor-parallel groups, alone in a network namespace: prints the bytes that each collective
sent over its loopback."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from bench_worker.parallel.exchange import Distributed

TP, RANKS, HIDDEN = 2, 4, 8192
#: Of each group; one rank of a group has a token more than the other.
TOKENS = 301


def rank(number: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29511", rank=number, world_size=RANKS)
    exchange = Distributed(HIDDEN, torch.float32, torch.device("cpu"), tp=TP)
    own = torch.ones(TOKENS // TP + (number % TP < TOKENS % TP), HIDDEN)
    sent = {
        "all_reduce": bytes_of(lambda: exchange.all_reduce([torch.ones(TOKENS, HIDDEN)])),
        "all_gather": bytes_of(lambda: exchange.all_gather([own], [TOKENS])),
    }
    if number == 0:
        print(json.dumps(sent))
    dist.destroy_process_group()


def bytes_of(collective) -> int:  # type: ignore[no-untyped-def]
    """What the second call sends on all ranks; the first one connects them."""
    collective()
    dist.barrier()
    before = sent_so_far()
    dist.barrier()
    collective()
    dist.barrier()
    after = sent_so_far()
    dist.barrier()
    return after - before


def sent_so_far() -> int:
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.partition(":")[2].split()[8])


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # no loss probes: where a rank waits for a processor, TCP takes its late acknowledgement for a loss and sends again
    Path("/proc/sys/net/ipv4/tcp_early_retrans").write_text("0")
    mp.spawn(rank, nprocs=RANKS)
