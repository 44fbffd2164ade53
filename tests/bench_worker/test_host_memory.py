"""Memory within control groups: both versions, nested, in a container and without any."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from bench_worker import host_memory

GB = 1_000_000_000


@pytest.fixture(autouse=True)
def computer(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 GB, of which 40 are free."""
    memory = psutil.virtual_memory()._replace(total=64 * GB, available=40 * GB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_without_control_groups_the_computer_counts(tmp_path: Path) -> None:
    assert host_memory.total_bytes(tmp_path) == 64 * GB
    assert host_memory.available_bytes(tmp_path) == 40 * GB
    assert host_memory.oom_kills(tmp_path) is None


def test_a_group_without_a_limit_changes_nothing(tmp_path: Path) -> None:
    put(tmp_path, {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n",
                   "sys/fs/cgroup/a/memory.current": f"{GB}"})  # fmt: skip
    assert host_memory.total_bytes(tmp_path) == 64 * GB
    assert host_memory.available_bytes(tmp_path) == 40 * GB


def test_the_tightest_group_counts_and_pages_that_nobody_uses_are_free(tmp_path: Path) -> None:
    """Own group: 16 GB, 10 used, of which 3 are file pages: 9 free. The one around it: 20 GB, 15 used: 5 free."""
    around, own = "sys/fs/cgroup/job", "sys/fs/cgroup/job/step"
    put(tmp_path, {
        "proc/self/cgroup": "0::/job/step\n",
        f"{own}/memory.max": f"{16 * GB}\n", f"{own}/memory.current": f"{10 * GB}\n",
        f"{own}/memory.stat": f"anon {7 * GB}\ninactive_file {3 * GB}\n",
        f"{own}/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0\n",
        f"{around}/memory.max": f"{20 * GB}\n", f"{around}/memory.current": f"{15 * GB}\n",
        f"{around}/memory.events": "oom_kill 7\n",
        "proc/vmstat": "oom_kill 9\n",
    })  # fmt: skip
    assert host_memory.total_bytes(tmp_path) == 16 * GB
    assert host_memory.available_bytes(tmp_path) == 5 * GB
    assert host_memory.oom_kills(tmp_path) == 2


def test_a_container_sees_its_own_group_at_the_mount_point(tmp_path: Path) -> None:
    own = "sys/fs/cgroup"
    put(tmp_path, {"proc/self/cgroup": "0::/docker/123\n", f"{own}/memory.max": f"{8 * GB}",
                   f"{own}/memory.current": f"{2 * GB}", f"{own}/memory.events": "oom_kill 1\n"})  # fmt: skip
    assert host_memory.total_bytes(tmp_path) == 8 * GB
    assert host_memory.available_bytes(tmp_path) == 6 * GB
    assert host_memory.oom_kills(tmp_path) == 1


def test_version_1_has_other_names_and_a_huge_number_for_no_limit(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/job"
    put(tmp_path, {
        "proc/self/cgroup": "5:devices:/\n4:hugetlb,memory:/job\n1:name=systemd:/\n",
        f"{group}/memory.limit_in_bytes": f"{12 * GB}\n", f"{group}/memory.usage_in_bytes": f"{4 * GB}\n",
        f"{group}/memory.stat": f"inactive_file {GB // 2}\ntotal_inactive_file {GB}\n",
        f"{group}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{30 * GB}\n",
    })  # fmt: skip
    assert host_memory.total_bytes(tmp_path) == 12 * GB
    assert host_memory.available_bytes(tmp_path) == 9 * GB
    assert host_memory.oom_kills(tmp_path) == 4


def test_the_computers_own_count_of_kills_stands_in_for_a_group_without_one(tmp_path: Path) -> None:
    put(tmp_path, {"proc/self/cgroup": "0::/\n", "proc/vmstat": "nr_free_pages 5\noom_kill 9\n"})
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    assert host_memory.oom_kills(tmp_path) == 9


def test_this_computer_has_memory() -> None:
    assert 0 < host_memory.total_bytes() <= 64 * GB
    assert host_memory.available_bytes() <= 40 * GB
