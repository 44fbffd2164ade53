"""The fingerprint: the same for the same machine and software, another one where anything that matters changed."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench_worker import environment, gpus

FACTS: dict[str, Any] = {
    "cpu": "AMD EPYC", "cores": 2, "memory_bytes": 16 * 2**30, "gpus": [], "driver": None, "governor": "performance",
    "versions": {"torch": "2.13.0"}, "threads": 2, "commit": "abc",
}  # fmt: skip


def test_this_machine_is_described_as_json() -> None:
    machine = environment.machine()
    assert json.loads(json.dumps(machine)) == machine
    assert machine["cores"] >= 1
    assert machine["memory_bytes"] > 1e8
    assert set(machine["versions"]) >= {"torch", "numpy"}
    assert machine["threads"] == torch.get_num_threads()
    assert set(machine["state"]) == {"clock_mhz", "throttled", "load_average", "gpus"}


def test_a_busy_moment_is_not_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = environment.machine()
    monkeypatch.setattr(environment.host, "state", lambda cpus: {"load_average": [99.0, 99.0, 99.0]})
    after = environment.machine()
    assert after["state"] != before["state"]
    assert after["fingerprint"] == before["fingerprint"]


@pytest.mark.parametrize(
    "change",
    [
        {"driver": "570"}, {"versions": {"torch": "2.14.0"}}, {"versions": {"torch": "2.13.0", "zentorch": "1"}},
        {"threads": 1}, {"commit": "def"}, {"memory_bytes": 32 * 2**30}, {"governor": "powersave"}, {"cores": 4},
        {"gpus": [{"name": "H100"}]},
    ],
)  # fmt: skip
def test_what_decides_the_speed_changes_the_fingerprint(change: dict[str, Any]) -> None:
    assert environment.fingerprint(FACTS | change) != environment.fingerprint(FACTS)


def test_a_reboot_that_moves_the_memory_by_a_few_pages_does_not() -> None:
    moved = FACTS | {"memory_bytes": FACTS["memory_bytes"] - 300_000}
    assert environment.fingerprint(moved) == environment.fingerprint(FACTS)


def test_threads_that_the_environment_limits_are_no_other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(environment.host, "usable_cores", lambda cpus: len(cpus))
    monkeypatch.setattr(environment.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(environment.torch.cuda, "device_count", lambda: 0)
    free = environment.machine(own=[0, 1, 2, 3])
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    limited, rank = environment.machine(own=[0, 1, 2, 3]), environment.machine(own=[0, 1])
    assert free["threads_flag"] is rank["threads_flag"] is None
    assert limited["threads_flag"].startswith("OMP_NUM_THREADS=2 in the environment keeps the CPU's work to 2 of 4")
    assert environment.device_fingerprint(limited) == environment.device_fingerprint(free)


def test_a_commit_that_the_image_names_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOESCOPE_COMMIT", "f00d")
    assert environment.machine()["commit"] == "f00d"


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch with two GPUs, of which NVIDIA's tool knows the first."""
    properties = [
        SimpleNamespace(
            name="NVIDIA H100", total_memory=80_000_000_000, major=9, minor=0, multi_processor_count=132, uuid=uuid
        )
        for uuid in ("5a1b", "6c2d")
    ]
    told = {"driver": "570.86", "clock_mhz": 1200.0, "max_clock_mhz": 1980.0, "memory_clock_mhz": 2619.0,
            "temperature_c": 71.0, "power_w": 400.0, "power_limit_w": 500.0, "slowed_by": ["power cap"]}  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: properties[i])
    monkeypatch.setattr(gpus, "query", lambda: {"5a1b": told})


def test_gpus_are_named_with_their_limits_and_their_present_state(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    machine = environment.machine(own=[0, 1])
    assert machine["threads_flag"] is None  # a GPU measures
    assert machine["name"] == "2× NVIDIA H100"
    assert (machine["device"], machine["driver"]) == ("NVIDIA H100", "570.86")
    first, second = machine["gpus"]
    assert first == {
        "name": "NVIDIA H100", "memory_bytes": 80_000_000_000, "capability": "9.0", "multiprocessors": 132,
        "max_clock_mhz": 1980.0, "power_limit_w": 500.0,
    }  # fmt: skip
    assert second["power_limit_w"] is None
    assert machine["state"]["gpus"][0]["slowed_by"] == ["power cap"]
    assert machine["state"]["gpus"][1]["slowed_by"] is None


def test_what_the_device_can_do_is_not_a_matter_of_this_program() -> None:
    found = environment.machine(threads=1)
    other = found | {"threads": 2, "pinned": not found["pinned"], "huge_pages": True, "commit": "abc", "state": {}}
    assert environment.device_fingerprint(other) == environment.device_fingerprint(found)
    assert environment.device_fingerprint(found | {"cpu": "another"}) != environment.device_fingerprint(found)
