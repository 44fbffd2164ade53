"""What a machine is, and what changed between two of its states."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from webapp.experiments.fingerprints import Change, changes, conditions, facts, timeline
from webapp.experiments.models import Machine
from webapp.ui.formatting import NBSP

GPU = {"name": "NVIDIA H100", "memory_bytes": 80_000_000_000, "max_clock_mhz": 1980.0, "power_limit_w": 700.0}
DETAILS: dict[str, Any] = {
    "cpu": "AMD EPYC 9654", "sockets": 2, "cores": 192, "cpu_quota": 2.5, "cpu_capability": "AVX512",
    "governor": "performance", "memory_bytes": 64_000_000_000, "gpus": [GPU, GPU], "driver": "570.86",
    "system": "Linux x86_64", "python": "3.11.7", "versions": {"torch": "2.13.0", "deepspeed": "0.19.8"},
    "threads": 96, "commit": "abc",
    "state": {
        "clock_mhz": {"now": 2400.4, "max": 3700.0}, "throttled": {"heat": 7, "quota": 0},
        "load_average": [4.04, 1.0, 1.0],
        "gpus": [
            {"clock_mhz": 1980.0, "temperature_c": 45.0, "power_w": 120.5, "slowed_by": []},
            {"clock_mhz": 1200.0, "temperature_c": None, "power_w": None, "slowed_by": ["power cap", "sync boost"]},
        ],
    },
}  # fmt: skip
START = datetime(2026, 3, 1, tzinfo=UTC)


def state(day: int, until: int, **details: Any) -> Machine:
    """A state first seen on ``day`` and last seen on ``until``."""
    seen = {"first_seen": START + timedelta(days=day), "last_seen": START + timedelta(days=until)}
    return Machine(fingerprint=str(day), details=DETAILS | details, **seen)


def test_the_facts_of_a_machine_have_names_and_units() -> None:
    assert facts(DETAILS) == {
        "Processor": "AMD EPYC 9654", "Sockets": "2", "Cores": "192", "Share of the cores": "2.5",
        "Instructions": "AVX512", "Governor": "performance", "Memory": f"64.0{NBSP}GB", "GPU": "2× NVIDIA H100",
        "GPU memory": f"2× 80.0{NBSP}GB", "GPU clock at most": "2× 1,980 MHz", "GPU power limit": "2× 700 W",
        "Driver": "570.86", "System": "Linux x86_64", "Python": "3.11.7", "torch": "2.13.0", "deepspeed": "0.19.8",
        "Threads": "96", "Commit": "abc",
    }  # fmt: skip


def test_what_a_machine_does_not_tell_is_left_out() -> None:
    assert facts({"cpu": "AMD EPYC", "gpus": [], "governor": None}) == {"Processor": "AMD EPYC"}
    assert conditions({"cpu": "AMD EPYC"}) == {}


def test_different_gpus_are_counted_apart() -> None:
    assert facts({"gpus": [GPU, {"name": "A100", "memory_bytes": 40e9}, GPU]})["GPU"] == "2× NVIDIA H100, 1× A100"


def test_the_moment_of_the_look_is_told_with_its_slow_downs() -> None:
    assert conditions(DETAILS) == {
        "Clock": "2,400 MHz, at most 3,700 MHz",
        "Slowed by heat": "7 times since it started",
        "Slowed by the container's share": "never since it started",
        "Load": "4.04 over the last minute",
        "GPU 0": "1,980 MHz, 45 °C, 120 W",
        "GPU 1": "1,200 MHz, slowed by power cap, sync boost",
    }


def test_changes_are_named_from_before_to_after() -> None:
    after = DETAILS | {
        "driver": "580.1", "versions": {"torch": "2.14.0", "zentorch": "2.14"}, "threads": 48, "commit": "def",
        "memory_bytes": 128_000_000_000, "governor": None,
    }  # fmt: skip
    assert changes(DETAILS, after) == [
        Change("Memory", f"64.0{NBSP}GB", f"128{NBSP}GB"),
        Change("Driver", "570.86", "580.1"),
        Change("torch", "2.13.0", "2.14.0"),
        Change("zentorch", "–", "2.14"),
        Change("Threads", "96", "48"),
        Change("Commit", "abc", "def"),
        Change("Governor", "performance", "–"),
        Change("deepspeed", "0.19.8", "–"),
    ]


def test_the_moment_of_the_look_is_no_change() -> None:
    assert changes(DETAILS, DETAILS | {"state": {}}) == []


def test_a_single_state_has_no_changes() -> None:
    assert timeline([state(0, 5)]) == []


def test_the_latest_change_comes_first() -> None:
    first, second, third = state(0, 2), state(2, 4, commit="def"), state(4, 5, commit="def", threads=1)
    steps = timeline([first, second, third])
    assert [(step.machine, step.at, [change.name for change in step.changes]) for step in steps] == [
        (third, third.first_seen, ["Threads"]),
        (second, second.first_seen, ["Commit"]),
    ]


def test_a_machine_that_went_back_is_in_its_old_state_again() -> None:
    first, second = state(0, 9), state(2, 4, commit="def")
    latest, earlier = timeline([first, second])
    assert (latest.machine, latest.at, latest.changes) == (first, second.last_seen, [Change("Commit", "def", "abc")])
    assert earlier.machine is second
