"""What a machine is and what changed about it, from the details that its worker registered (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

from webapp.experiments.models import Machine
from webapp.ui.formatting import MISSING, count, number, size

#: What details hold beside lists: key -> name. The order is that of the page.
PLAIN = {
    "sockets": "Sockets",
    "cores": "Cores",
    "cpu_quota": "Share of the cores",
    "cpu_capability": "Instructions",
    "governor": "Governor",
}
SOFTWARE = {"driver": "Driver", "system": "System", "python": "Python"}
GPU_STATE = {"clock_mhz": "MHz", "temperature_c": "°C", "power_w": "W"}
SETTINGS = {"threads": "Threads", "pinned": "Threads pinned", "huge_pages": "Huge pages", "commit": "Commit"}


class Change(NamedTuple):
    """A fact that differs between two states; a dash where one of them does not have it."""

    name: str
    before: str
    after: str


class Step(NamedTuple):
    """A state that a machine came into at ``at``, and what was different before."""

    machine: Machine
    at: datetime
    changes: list[Change]


def facts(details: Mapping[str, Any]) -> dict[str, str]:
    """What decides how fast the machine is, by name; what it doesn't tell is left out."""
    gpus = details.get("gpus", [])
    memory = details.get("memory_bytes")
    found: dict[str, Any] = {
        "Processor": details.get("cpu"),
        **_named(PLAIN, details),
        "Memory": memory and size(memory),
        "GPU": _counted(gpu["name"] for gpu in gpus if "name" in gpu),
        "GPU memory": _counted(size(gpu["memory_bytes"]) for gpu in gpus),
        "GPU clock at most": _counted(_with("MHz", gpu.get("max_clock_mhz")) for gpu in gpus),
        "GPU power limit": _counted(_with("W", gpu.get("power_limit_w")) for gpu in gpus),
        **_named(SOFTWARE, details),
        **details.get("versions", {}),
        **_named(SETTINGS, details),
    }
    return {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in found.items() if value}


def conditions(details: Mapping[str, Any]) -> dict[str, str]:
    """How the machine was at the moment of the look: clocks, slow-downs and load; what it doesn't tell is left out."""
    state = details.get("state", {})
    clock, throttled = state.get("clock_mhz", {}), state.get("throttled", {})
    load = state.get("load_average")
    found = {
        "Clock": _of(_with("MHz", clock.get("now")), _with("MHz", clock.get("max"))),
        "Slowed by heat": _times(throttled.get("heat")),
        "Slowed by the container's share": _times(throttled.get("quota")),
        "Load": load and f"{number(load[0])} over the last minute",
    }
    for place, gpu in enumerate(state.get("gpus", [])):
        read = [_with(unit, gpu.get(name)) for name, unit in GPU_STATE.items()]
        slowed = ", ".join(gpu.get("slowed_by") or [])
        found[f"GPU {place}"] = ", ".join(filter(None, [*read, slowed and f"slowed by {slowed}"]))
    return {name: value for name, value in found.items() if value}


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """The facts in which two states differ."""
    old, new = facts(before), facts(after)
    return [
        Change(name, old.get(name, MISSING), new.get(name, MISSING))
        for name in dict.fromkeys([*new, *old])
        if old.get(name) != new.get(name)
    ]


def timeline(states: Sequence[Machine]) -> list[Step]:
    """What changed from state to state, latest first. ``states``: of one machine, in the order they were first seen.

    A machine that went back to an earlier state (an upgrade undone) is in it again: since some time after the state
    between was last seen.
    """
    steps = [Step(new, new.first_seen, changes(old.details, new.details)) for old, new in pairwise(states)]
    current = max(states, key=lambda state: state.last_seen)
    if current is not states[-1]:
        steps.append(Step(current, states[-1].last_seen, changes(states[-1].details, current.details)))
    return steps[::-1]


def _named(names: Mapping[str, str], details: Mapping[str, Any]) -> dict[str, Any]:
    return {name: details.get(key) for key, name in names.items()}


def _counted(values: Iterable[str]) -> str:
    """Equal values once, with how many there are: ``2× NVIDIA H100``."""
    found = list(values)
    if not any(found):
        return ""
    return ", ".join(f"{found.count(value)}× {value or MISSING}" for value in dict.fromkeys(found))


def _with(unit: str, value: float | None) -> str:
    return "" if value is None else f"{count(value)} {unit}"


def _of(now: str, most: str) -> str:
    return f"{now}, at most {most}" if now and most else now or most


def _times(slowed: int | None) -> str:
    return (
        "" if slowed is None else "never since it started" if slowed == 0 else f"{count(slowed)} times since it started"
    )
