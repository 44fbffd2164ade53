"""Measures the all-to-all of real ranks over message sizes, for a topology of one's own.

Shapes: ``R`` ranks, ``N`` measured exchanges.
"""

from __future__ import annotations

import time
from datetime import date

import numpy as np
import torch
import torch.distributed as dist

from bench_worker.parallel.all_to_all import all_to_all
from bench_worker.parallel.common_clock import clock_offsets_us
from bench_worker.parallel.network_fit import fit_table, to_toml
from bench_worker.parallel.topology import Table, Topology, Wire, domains
from bench_worker.parallel.world import World

__all__ = ["as_toml", "sweep"]

#: Bytes that a rank sends to all others together.
SIZES = tuple(2**power for power in range(10, 25))
ROUNDS, WARM_UP = 15, 3
#: No further round of a size begins after this.
SECONDS_A_SIZE = 4.0


def sweep(crew: World, hosts: int) -> dict[str, Table]:
    """By domain, the table of an even all-to-all: ``intra_node`` among the ranks of a host, ``inter_node`` with those
    of the others. All ranks call this, and all get it."""
    ranks = crew.place.size
    nodes = np.arange(ranks) // (ranks // hosts)
    offsets = clock_offsets_us()
    ahead_us = offsets[crew.place.rank] if offsets else 0.0
    found = {}
    for domain, pairs in domains(nodes).items():
        if domain != "local" and pairs.any():
            among = ranks // hosts if domain == "intra_node" else ranks
            found[domain] = _table(crew, pairs, among, ahead_us)
    return found


def _table(crew: World, pairs: np.ndarray, among: int, ahead_us: float) -> Table:
    sent, times = [], []
    for size in SIZES:
        crew.phase(f"{size} bytes")
        each = max(1, size // int(pairs[0].sum()))
        for us in _rounds(crew, pairs, each, ahead_us):
            sent.append(float(each * int(pairs[0].sum())))
            times.append(us)
    return fit_table(np.array(sent), np.array(times), among)


def _rounds(crew: World, pairs: np.ndarray, each: int, ahead_us: float) -> list[float]:
    """Times in µs, from the last rank's arrival to the last one's end, of sending ``each`` bytes over each of ``pairs``
    [R, R]."""
    own = crew.place.rank
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    send, receive = (np.where(part, each, 0).tolist() for part in (pairs[own], pairs[:, own]))
    rows = torch.zeros(sum(send), dtype=torch.uint8, device=device)
    into = torch.empty(sum(receive), dtype=torch.uint8, device=device)
    spans, deadline = [], time.monotonic() + SECONDS_A_SIZE
    for turn in range(WARM_UP + ROUNDS):
        if turn > WARM_UP + 1 and crew.agree(time.monotonic() > deadline):
            break
        dist.barrier()
        start = _now_us(device)
        all_to_all(into, rows, receive, send)
        spans.append((start - ahead_us, _now_us(device) - ahead_us))
        crew.sign("an exchange")
    everyone: list[list[tuple[float, float]]] = [[] for _ in pairs]
    dist.all_gather_object(everyone, spans[WARM_UP:])
    begin, end = np.array(everyone).max(axis=0).T  # the last rank's
    return np.maximum(end - begin, 0.1).tolist()


def _now_us(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter_ns() / 1e3


def as_toml(tables: dict[str, Table], name: str, where: str) -> str:
    """A topology file of what `sweep` found on machine ``where``."""
    source = f"all-to-all of {max(table.ranks for table in tables.values())} ranks on {where}, {date.today()}"
    own = {domain: Wire(origin="modelled", source=source[:400], tables=(table,)) for domain, table in tables.items()}
    topology = Topology(name=name, description=f"Measured: {where}"[:400], paths=own)
    return to_toml({f"{name}-{domain}": wire for domain, wire in own.items()}, [topology])
