"""What else happened on the machine while something was measured: flagged beside the numbers, never hidden.

Torch-free.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from bench_worker import host

__all__ = ["BUSY_SHARE", "Snapshot", "flags", "governor_flag", "snapshot", "threads_flag", "told"]

#: Share of the processors that others may take before a measurement says so.
BUSY_SHARE = 0.05
#: Variables that decide how many threads torch computes with: that of its MKL, which wheels for x86 have, before
#: OpenMP's.
MKL_THREADS, OPENMP_THREADS = "MKL_NUM_THREADS", "OMP_NUM_THREADS"
MKL_MACHINES = frozenset({"x86_64", "AMD64"})


@dataclass(frozen=True)
class Snapshot:
    """Seconds since some fixed points in the past, and the number of thermal throttling events so far.

    ``busy_s``: all processes, over all processors; ``own_s``: this one; ``stolen_s``: taken by the hypervisor.
    """

    wall_s: float
    busy_s: float
    own_s: float
    stolen_s: float
    throttled: int


def snapshot() -> Snapshot:
    cpu = psutil.cpu_times()
    own = psutil.Process().cpu_times()
    stolen = getattr(cpu, "steal", 0.0)
    busy = sum(cpu) - cpu.idle - getattr(cpu, "iowait", 0.0) - stolen - getattr(cpu, "guest", 0.0)
    return Snapshot(time.monotonic(), busy, own.user + own.system, stolen, host.throttled(host.PROCESSORS)["heat"] or 0)


def flags(before: Snapshot, after: Snapshot, processors: int) -> list[str]:
    """What happened between two snapshots that makes times doubtful, one sentence each."""
    span = max(after.wall_s - before.wall_s, 1e-9) * processors
    others = ((after.busy_s - before.busy_s) - (after.own_s - before.own_s)) / span
    stolen = (after.stolen_s - before.stolen_s) / span
    found = []
    if others > BUSY_SHARE:
        found.append(f"Other processes took {others:.0%} of the processors meanwhile.")
    if stolen > BUSY_SHARE:
        found.append(f"The hypervisor took {stolen:.0%} of the processors away meanwhile.")
    if (events := after.throttled - before.throttled) > 0:
        found.append(f"The processors throttled {events:,} times meanwhile because of heat.")
    return found


def governor_flag(governor: str | None) -> str | None:
    """A sentence where the processors' clock is governed by anything but ``performance``; None where it isn't, or where
    the system doesn't tell (most virtual machines). ``governor`` as `host.governor` says it."""
    if governor in (None, "performance"):
        return None
    return f"The processors' clock is governed by {governor}: times may vary until it is performance alone."


def told(before: Snapshot, machine: Mapping[str, Any], *, own_threads: bool) -> list[str]:
    """All that makes times doubtful which were measured since ``before`` on ``machine`` (`environment.machine`), one
    sentence each. ``own_threads``: some of what was measured took the threads that the environment gives."""
    found = flags(before, snapshot(), machine["cores"])
    standing = governor_flag(machine["governor"]), machine["threads_flag"] if own_threads else None
    return found + [sentence for sentence in standing if sentence]


def threads_flag(environ: Mapping[str, str], cores: int) -> str | None:
    """A sentence where a variable of ``environ`` has torch compute with fewer threads than the ``cores`` that it may
    use (`host.usable_cores`); None where none does."""
    names = (MKL_THREADS, OPENMP_THREADS) if platform.machine() in MKL_MACHINES else (OPENMP_THREADS,)
    name = next((name for name in names if _threads(environ, name)), None)
    if name is None or (threads := _threads(environ, name)) >= cores:
        return None
    return (
        f"{name}={environ[name]} in the environment keeps the CPU's work to {threads} of {cores} cores: unset it, or "
        "set CPU threads in the experiment."
    )


def _threads(environ: Mapping[str, str], name: str) -> int:
    """Of a list (``4,2``) the first number, which is that of the outer level; 0 for what is no number of threads."""
    first = environ.get(name, "").partition(",")[0].strip()
    return int(first) if first.isascii() and first.isdecimal() else 0
