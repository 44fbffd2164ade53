"""Which machine and software measured: the fingerprint that every result carries."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from bench_worker import gpus, host, host_memory, machine_state
from bench_worker.allocators import HUGE_PAGES

PACKAGES = ("torch", "deepspeed", "zentorch", "numpy")


def device() -> torch.device:
    """The device that measures here: this process's CUDA device where there is one, the first unless it took another;
    else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def available_bytes(on: torch.device) -> int:
    """Memory that a measurement may take now on ``on``: free device memory, or free host memory within the cgroup."""
    if on.type == "cuda":
        return torch.cuda.mem_get_info(on)[0]
    return host_memory.available_bytes()


def machine(threads: int | None = None, own: Collection[int] = host.PROCESSORS) -> dict[str, Any]:
    """Hardware, software and settings as JSON, with the `fingerprint` of them, and their ``state`` at this moment.

    ``threads_flag``: a sentence where the environment keeps a CPU's work from processors that are this process's
    ``own``, as a rank's are; None where it doesn't.
    """
    cpus = host.PROCESSORS
    told = gpus.query() if torch.cuda.is_available() else {}
    found = [_gpu(i, told) for i in range(torch.cuda.device_count())]
    facts = {
        "device": found[0]["name"] if found else "cpu",
        "cpu": host.cpu_name(),
        "sockets": host.sockets(),
        "cores": len(cpus),
        "cpu_quota": host.cpu_quota(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "governor": host.governor(cpus),
        "memory_bytes": host_memory.total_bytes(),
        "gpus": [{name: value for name, value in gpu.items() if name != "state"} for gpu in found],
        "driver": next((facts["driver"] for facts in told.values()), None),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "threads": threads or torch.get_num_threads(),
        "pinned": os.environ.get("OMP_PROC_BIND", "").lower() not in ("", "false"),
        "huge_pages": HUGE_PAGES in os.environ.get("GLIBC_TUNABLES", ""),
        "commit": _commit(),
    }
    state = host.state(cpus) | {"gpus": [gpu["state"] for gpu in found]}
    flag = None if found else machine_state.threads_flag(os.environ, host.usable_cores(own))
    return {"name": _name(facts), "fingerprint": fingerprint(facts), **facts, "threads_flag": flag, "state": state}


def fingerprint(facts: dict[str, Any]) -> str:
    """A short hash of what decides how fast a run is. Memory counts in whole GiB: a reboot moves it by a few pages."""
    rounded = {**facts, "memory_bytes": round(facts["memory_bytes"] / 2**30)}
    return hashlib.sha256(json.dumps(rounded, sort_keys=True).encode()).hexdigest()[:12]


def device_fingerprint(facts: dict[str, Any]) -> str:
    """As `fingerprint`, of what decides how fast the device can be: not of this program, nor of this process."""
    own = ("name", "fingerprint", "threads", "threads_flag", "pinned", "huge_pages", "commit", "state")
    return fingerprint({name: fact for name, fact in facts.items() if name not in own})


def _name(facts: dict[str, Any]) -> str:
    if facts["gpus"]:
        return f"{len(facts['gpus'])}× {facts['gpus'][0]['name']}"
    return f"{facts['cpu']}, {facts['cores']} cores"


def _gpu(index: int, told: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What torch knows of a GPU, and what the driver's tool ``told`` of it; ``state`` is of this moment."""
    properties = torch.cuda.get_device_properties(index)
    more = told.get(gpus.bare(str(properties.uuid)), {})
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "max_clock_mhz": more.get("max_clock_mhz"),
        "power_limit_w": more.get("power_limit_w"),
        "state": {
            name: more.get(name) for name in ("clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "slowed_by")
        },
    }


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
