"""What Linux tells in files, and None where it doesn't."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_worker import host

CPUINFO = """processor\t: 0
model name\t: AMD EPYC 9654 96-Core Processor
cpu MHz\t\t: 2400.000
physical id\t: 0

processor\t: 1
model name\t: AMD EPYC 9654 96-Core Processor
cpu MHz\t\t: 3600.000
physical id\t: 1
"""


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def cpu(number: int, name: str) -> str:
    return f"sys/devices/system/cpu/cpu{number}/{name}"


def test_the_processor_has_a_name_and_sockets(tmp_path: Path) -> None:
    write(tmp_path, {"proc/cpuinfo": CPUINFO})
    assert host.cpu_name(tmp_path) == "AMD EPYC 9654 96-Core Processor"
    assert host.sockets(tmp_path) == 2


def test_a_system_that_tells_nothing_is_not_guessed_at(tmp_path: Path) -> None:
    assert host.cpu_name(tmp_path)  # Python's own answer
    assert host.sockets(tmp_path) is None
    assert host.governor([0, 1], tmp_path) is None
    assert host.clock_mhz([0, 1], tmp_path) == {"now": None, "max": None}
    assert host.throttled([0, 1], tmp_path) == {"heat": None, "quota": None}
    assert host.cpu_quota(tmp_path) is None


@pytest.mark.parametrize(
    ("governors", "said"),
    [(["performance"] * 2, "performance"), (["powersave", "performance"], "performance and powersave")],
)
def test_the_governor_is_that_of_the_processors_in_use(tmp_path: Path, governors: list[str], said: str) -> None:
    write(tmp_path, {cpu(number, "cpufreq/scaling_governor"): text for number, text in enumerate(governors)})
    write(tmp_path, {cpu(2, "cpufreq/scaling_governor"): "ondemand"})
    assert host.governor([0, 1], tmp_path) == said


@pytest.mark.parametrize(
    ("cpus", "quota", "cores"),
    [([0, 1, 2, 3], "max 100000", 2), ([0, 1], "max 100000", 2), ([0, 2], "max 100000", 1),
     ([0, 1, 2, 3], "150000 100000", 1), ([0, 1, 2, 3], "50000 100000", 1), ([0, 1, 2, 3], "900000 100000", 2)],
)  # fmt: skip
def test_a_core_counts_once_for_its_hardware_threads(tmp_path: Path, cpus: list[int], quota: str, cores: int) -> None:
    siblings = {cpu(number, "topology/thread_siblings_list"): f"{number % 2},{number % 2 + 2}" for number in range(4)}
    write(tmp_path, siblings | {"sys/fs/cgroup/cpu.max": quota})
    assert host.usable_cores(cpus, tmp_path) == cores


def test_a_system_that_tells_no_cores_has_as_many_as_processors(tmp_path: Path) -> None:
    assert host.usable_cores([0, 1, 5], tmp_path) == 3


def test_clocks_come_from_the_driver(tmp_path: Path) -> None:
    write(tmp_path, {"proc/cpuinfo": CPUINFO, cpu(0, "cpufreq/scaling_cur_freq"): "3000000"})
    write(tmp_path, {cpu(1, "cpufreq/scaling_cur_freq"): "2000000", cpu(1, "cpufreq/cpuinfo_max_freq"): "3700000"})
    assert host.clock_mhz([0, 1], tmp_path) == {"now": 2500.0, "max": 3700.0}


def test_without_a_driver_the_clock_is_what_the_kernel_counted(tmp_path: Path) -> None:
    write(tmp_path, {"proc/cpuinfo": CPUINFO})
    assert host.clock_mhz([0, 1], tmp_path) == {"now": 3000.0, "max": None}


def test_slow_downs_are_counted_by_cause(tmp_path: Path) -> None:
    write(tmp_path, {cpu(0, "thermal_throttle/core_throttle_count"): "3"})
    write(tmp_path, {cpu(1, "thermal_throttle/core_throttle_count"): "4"})
    write(tmp_path, {"sys/fs/cgroup/cpu.stat": "usage_usec 7\nnr_periods 100\nnr_throttled 12\nthrottled_usec 9"})
    assert host.throttled([0, 1], tmp_path) == {"heat": 7, "quota": 12}


@pytest.mark.parametrize(("text", "cpus"), [("max 100000", None), ("250000 100000", 2.5)])
def test_a_container_may_have_a_share_of_the_processors(tmp_path: Path, text: str, cpus: float | None) -> None:
    assert host.cpu_quota(write(tmp_path, {"sys/fs/cgroup/cpu.max": text})) == cpus


def test_this_computer_answers() -> None:
    cpus = host.PROCESSORS
    assert cpus
    assert set(host.state(cpus)) == {"clock_mhz", "throttled", "load_average"}


def test_the_largest_cache_counts(tmp_path: Path) -> None:
    assert host.last_level_cache_bytes(tmp_path) == 0
    for index, size in enumerate(["48K", "1024K", "32M"]):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(f"{size}\n")
    assert host.last_level_cache_bytes(tmp_path) == 32 * 2**20
