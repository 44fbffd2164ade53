"""What NVIDIA's own tool tells of the GPUs beyond what torch knows: driver, clocks, power, and why they are slowed.
Torch-free.
"""

from __future__ import annotations

import csv
import subprocess
from typing import Any

#: ``nvidia-smi --query-gpu``: our name -> its name.
NUMBERS = {
    "clock_mhz": "clocks.sm",
    "max_clock_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
    "power_limit_w": "power.limit",
}
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # the second: drivers before 535
#: Bits of the reasons' mask (NVML, ``nvmlClocksEventReasons``). An idle GPU (bit 0) is not slowed down.
SLOWED_BY = {
    0x2: "applications clock setting",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
    0x100: "display clock setting",
}


def query() -> dict[str, dict[str, Any]]:
    """By `bare` UUID: ``driver``, `NUMBERS`, ``slowed_by``; None where a GPU doesn't tell. Empty without the tool."""
    for reasons in REASONS:
        asked = ",".join(["uuid", "driver_version", *NUMBERS.values(), reasons])
        command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader,nounits"]
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        except subprocess.CalledProcessError:  # it doesn't know this name of the reasons
            continue
        except (OSError, subprocess.TimeoutExpired):
            return {}
        return parse(said)
    return {}


def parse(said: str) -> dict[str, dict[str, Any]]:
    """The answer of ``nvidia-smi``: a line a GPU, its values separated by commas; other lines are remarks."""
    found = {}
    for line in csv.reader(said.splitlines(), skipinitialspace=True):
        if len(line) != len(NUMBERS) + 3:
            continue
        uuid, driver, *values, reasons = line
        numbers = dict(zip(NUMBERS, map(_number, values), strict=True))
        found[bare(uuid)] = {"driver": driver, **numbers, "slowed_by": _reasons(reasons)}
    return found


def bare(uuid: str) -> str:
    """A UUID as torch writes it: the tool puts ``GPU-`` before it."""
    return uuid.removeprefix("GPU-")


def _number(text: str) -> float | None:
    """None for ``[N/A]``, ``[Not Supported]`` and the like."""
    try:
        return float(text)
    except ValueError:
        return None


def _reasons(text: str) -> list[str] | None:
    try:
        mask = int(text, 16)
    except ValueError:
        return None
    return [reason for bit, reason in SLOWED_BY.items() if mask & bit]
