"""Which machine and software measured: the fingerprint that every result carries."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

PACKAGES = ("torch", "deepspeed", "zentorch", "numpy")


def device() -> torch.device:
    """The device that measures here: the first CUDA device where there is one, else the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def available_bytes(on: torch.device) -> int:
    """Memory that a measurement may take now on ``on``: free device memory, or free host memory within the cgroup."""
    if on.type == "cuda":
        return torch.cuda.mem_get_info(on)[0]
    limit, used = _cgroup_memory()
    free = psutil.virtual_memory().available
    return min(free, limit - used) if limit is not None else free


def machine(threads: int | None = None) -> dict[str, Any]:
    """Hardware and software as JSON. ``fingerprint`` is a short hash of what decides how fast a run is."""
    gpus = [_gpu(i) for i in range(torch.cuda.device_count())]
    limit, _ = _cgroup_memory()
    total = psutil.virtual_memory().total
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    host = {
        "device": gpus[0]["name"] if gpus else "cpu",
        "cpu": _cpu_name(),
        "cores": cores,
        "memory_bytes": min(total, limit) if limit is not None else total,
        "gpus": gpus,
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "driver": _driver() if gpus else None,
    }
    rounded = {**host, "memory_bytes": round(host["memory_bytes"] / 2**30)}  # a reboot moves it by a few pages
    fingerprint = hashlib.sha256(json.dumps(rounded, sort_keys=True).encode()).hexdigest()[:12]
    return {
        "name": _name(host, cores),
        "fingerprint": fingerprint,
        **host,
        "threads": threads or torch.get_num_threads(),
        "python": platform.python_version(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "commit": _commit(),
        "load_average": list(os.getloadavg()),
    }


def _name(host: dict[str, Any], cores: int) -> str:
    if host["gpus"]:
        return f"{len(host['gpus'])}× {host['gpus'][0]['name']}"
    return f"{host['cpu']}, {cores} cores"


def _cpu_name() -> str:
    """The processor's model name, as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
    }


def _driver() -> str | None:
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of this code: from ``MOESCOPE_COMMIT``, which images set, or from the repository it lies in."""
    if commit := os.environ.get("MOESCOPE_COMMIT"):
        return commit
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _cgroup_memory() -> tuple[int | None, int]:
    """Limit (None: unlimited) and use of this process's memory cgroup, version 2."""
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    try:
        text = limit.read_text().strip()
        return (None, 0) if text == "max" else (int(text), int(used.read_text()))
    except (OSError, ValueError):
        return None, 0
