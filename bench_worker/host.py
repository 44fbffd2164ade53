"""What the system tells of this computer: processor, clocks, and the limits it sets. Torch-free.

Linux tells it in files; where a file is missing (another system, a virtual machine, a closed container) the answer is
None, never a guess. ``root`` is the root of the file system, so that tests can bring their own.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from pathlib import Path
from typing import Any

ROOT = Path("/")


#: Numbers of the logical processors that this process may run on. Read before torch loads: then its OpenMP pins the
#: main thread to one.
PROCESSORS: frozenset[int] = frozenset(
    os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
)


def cpu_name(root: Path = ROOT) -> str:
    """The processor's model name."""
    names = _cpuinfo("model name", root)
    return names[0] if names else platform.processor() or platform.machine()


def sockets(root: Path = ROOT) -> int | None:
    """How many processor packages there are."""
    return len(set(_cpuinfo("physical id", root))) or None


def governor(cpus: Collection[int], root: Path = ROOT) -> str | None:
    """How the system sets the clock: ``performance``, ``powersave``; all of them where ``cpus`` differ."""
    found = {text for cpu in cpus if (text := _text(_cpu(cpu, root) / "cpufreq/scaling_governor"))}
    return " and ".join(sorted(found)) or None


def clock_mhz(cpus: Collection[int], root: Path = ROOT) -> dict[str, float | None]:
    """``now``: mean clock of ``cpus``; ``max``: the highest that any of them may reach."""
    now = [khz / 1000 for cpu in cpus if (khz := _number(_cpu(cpu, root) / "cpufreq/scaling_cur_freq"))]
    now = now or [float(mhz) for mhz in _cpuinfo("cpu MHz", root)]
    highest = [khz / 1000 for cpu in cpus if (khz := _number(_cpu(cpu, root) / "cpufreq/cpuinfo_max_freq"))]
    return {"now": sum(now) / len(now) if now else None, "max": max(highest, default=None)}


def throttled(cpus: Collection[int], root: Path = ROOT) -> dict[str, int | None]:
    """How often this computer was slowed down since it started: ``heat`` by the processor itself, ``quota`` by the
    container's share of processor time."""
    heat = [_number(_cpu(cpu, root) / "thermal_throttle/core_throttle_count") for cpu in cpus]
    told = [count for count in heat if count is not None]
    stat = dict(line.split() for line in (_text(root / "sys/fs/cgroup/cpu.stat") or "").splitlines())
    quota = stat.get("nr_throttled")
    return {"heat": sum(told) if told else None, "quota": int(quota) if quota else None}


def last_level_cache_bytes(root: Path = ROOT) -> int:
    """Size of the largest cache of the first processor; 0 where the system doesn't tell."""
    units = {"K": 1024, "M": 1024**2, "G": 1024**3}
    sizes = [_text(file) or "" for file in _cpu(0, root).glob("cache/index*/size")]
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=0)


def cpu_quota(root: Path = ROOT) -> float | None:
    """Processors' worth of time that the container may use (cgroup version 2); None: as many as there are."""
    quota, _, period = (_text(root / "sys/fs/cgroup/cpu.max") or "max").partition(" ")
    return None if quota == "max" else int(quota) / int(period)


def usable_cores(cpus: Collection[int], root: Path = ROOT) -> int:
    """Cores of ``cpus``, each once however many of its hardware threads are among them, but no more than `cpu_quota`
    gives: as many threads as MKL, and torch with it, takes by itself. Where the system doesn't tell, each processor is
    a core."""
    cores = {_text(_cpu(cpu, root) / "topology/thread_siblings_list") or str(cpu) for cpu in cpus}
    quota = cpu_quota(root)
    return len(cores) if quota is None else max(1, min(len(cores), int(quota)))


def state(cpus: Collection[int], root: Path = ROOT) -> dict[str, Any]:
    """What changes from minute to minute: clocks, slow-downs so far, and how busy the computer is."""
    return {
        "clock_mhz": clock_mhz(cpus, root),
        "throttled": throttled(cpus, root),
        "load_average": list(os.getloadavg()),
    }


def _cpu(number: int, root: Path) -> Path:
    return root / f"sys/devices/system/cpu/cpu{number}"


def _cpuinfo(key: str, root: Path) -> list[str]:
    """The values of ``key``, one for each logical processor that has it."""
    lines = (line.partition(":") for line in (_text(root / "proc/cpuinfo") or "").splitlines())
    return [value.strip() for name, _, value in lines if name.strip() == key]


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text is not None and text.isdecimal() else None


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None
