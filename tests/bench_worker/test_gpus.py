"""The answer of ``nvidia-smi``, read from its words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench_worker import gpus

H100 = "GPU-5a1b, 570.86.15, 1980, 1980, 2619, 45, 120.53, 700.00, 0x0000000000000004"
OLD = "GPU-77ff, 470.10, 300, [N/A], 405, 30, [Not Supported], [N/A], [N/A]"


def test_each_gpu_is_found_by_its_uuid() -> None:
    found = gpus.parse(f"{H100}\n{OLD}\n")
    assert found["5a1b"] == {
        "driver": "570.86.15", "clock_mhz": 1980.0, "max_clock_mhz": 1980.0, "memory_clock_mhz": 2619.0,
        "temperature_c": 45.0, "power_w": 120.53, "power_limit_w": 700.0, "slowed_by": ["power cap"],
    }  # fmt: skip
    assert found["77ff"]["driver"] == "470.10"


def test_a_remark_is_no_gpu() -> None:
    assert gpus.parse(f"Warning: infoROM is corrupted at gpu 0000:01:00.0\n{H100}") == gpus.parse(H100)
    assert gpus.parse("No devices were found") == {}


def test_what_a_gpu_does_not_tell_is_none() -> None:
    found = gpus.parse(OLD)["77ff"]
    assert [name for name, value in found.items() if value is None] == [
        "max_clock_mhz", "power_w", "power_limit_w", "slowed_by"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mask", "reasons"),
    [("0x0", []), ("0x1", []), ("0x60", ["heat (software)", "heat (hardware)"]), ("0x9", ["hardware slowdown"])],
)
def test_an_idle_gpu_is_not_slowed_down(mask: str, reasons: list[str]) -> None:
    assert gpus.parse(H100.replace("0x0000000000000004", mask))["5a1b"]["slowed_by"] == reasons


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in the tool's place, first on the path."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    script = tmp_path / "nvidia-smi"
    script.touch(0o755)
    return script


def test_an_older_driver_is_asked_by_the_older_name(nvidia_smi: Path) -> None:
    nvidia_smi.write_text(f'#!/bin/sh\ncase "$1" in *clocks_event_reasons*) exit 2;; esac\necho "{H100}"\n')
    assert list(gpus.query()) == ["5a1b"]


def test_a_tool_that_fails_tells_nothing(nvidia_smi: Path) -> None:
    nvidia_smi.write_text("#!/bin/sh\nexit 9\n")
    assert gpus.query() == {}


def test_without_the_tool_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.query() == {}
