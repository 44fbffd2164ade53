"""How the machine was around a run: probes of its memory bus and its matrix rate between steps, outside every clock.

The bus of a shared machine may stay slow for minutes, so that a run is steady in itself and differs from another all
the same. A probe repeats kernels that set the calibrated ceilings.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import NamedTuple

import torch

from bench_worker import calibrate
from bench_worker.calibrate import Kernel
from bench_worker.ceilings import Ceilings
from bench_worker.noise import Seen
from bench_worker.recording import RunRecord

__all__ = ["Key", "Watch"]

#: Probes between steps take at most this share of the time, and are at least so many seconds apart.
COST, APART_S = 0.005, 2.0
#: Turns of the memory kernel in a probe, each over a buffer of its own; the better one counts.
TURNS = calibrate.PROBE_BUFFERS


class Key(NamedTuple):
    """What runs have in common that are probed together."""

    threads: int
    dtype: str


class Watch:
    """Probes for the runs of an experiment on a CPU. A probe counts for all runs that take turns, so none of them pays
    more for it than another. Ceilings whose kernels this version does not have are not probed."""

    def __init__(self, device: torch.device, keys: Iterable[Key], ceilings: Mapping[int, Ceilings]) -> None:
        self._due = 0.0
        self._kernels: dict[Key, tuple[Kernel, Kernel | None]] = {}
        self._usual: dict[Key, Seen] = {}
        self._best: dict[int, float] = {}
        bus_kernel = cache(lambda name: calibrate.bus_kernel(device, name))
        plain_product = cache(lambda dtype: calibrate.plain_product(device, dtype))
        for key in keys:
            kept = ceilings.get(key.threads)
            bus = None if kept is None else bus_kernel(kept.bus.kernel)
            if kept is None or bus is None:
                continue
            product = plain_product(key.dtype)
            usual = kept.matrix[key.dtype].by_kernel.get(product.name)
            self._kernels[key] = bus, product if usual else None
            self._usual[key] = Seen(kept.bus.value, usual)
            self._probe(key)  # the first time warms up

    @property
    def is_due(self) -> bool:
        return bool(self._kernels) and time.monotonic() >= self._due

    def look(self, runs: Sequence[tuple[Key, RunRecord]]) -> None:
        """Probe now, and note in the record of each run what was seen."""
        started = time.monotonic()
        found = {key: self._probe(key) for key in dict.fromkeys(key for key, _ in runs) if key in self._kernels}
        for key, record in runs:
            if key in found:
                record.seen.append(found[key])
                record.usual = self._usual[key]
        for key, seen in found.items():
            self._best[key.threads] = max(seen.memory, self._best.get(key.threads, 0.0))
        now = time.monotonic()
        self._due = now + max(APART_S, (now - started) / COST)

    def raised(self, ceilings: Mapping[int, Ceilings]) -> dict[int, Ceilings]:
        """``ceilings`` by number of threads. A bus that a probe saw faster than that was calibrated too low: no stage
        is held against less than was seen."""
        now = datetime.now(UTC)
        return {threads: kept.raised(self._best.get(threads, 0.0), now) for threads, kept in ceilings.items()}

    def _probe(self, key: Key) -> Seen:
        if torch.get_num_threads() != key.threads:
            torch.set_num_threads(key.threads)
        bus, matrix = self._kernels[key]
        return Seen(
            memory=bus.amount / min(calibrate.cpu_seconds(bus.run, turn) for turn in range(TURNS)) / 1e9,
            matrix=None if matrix is None else matrix.amount / calibrate.cpu_seconds(matrix.run, 0) / 1e9,
        )
