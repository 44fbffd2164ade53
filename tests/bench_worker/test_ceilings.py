"""Kept ceilings: what they say, and the file that holds them."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench_worker import ceilings
from bench_worker.ceilings import Ceiling, Ceilings


def made(threads=2, **changes):
    def ceiling(value, unit):
        return Ceiling(value=value, unit=unit, kernel="copy", median=0.8 * value, lowest=0.5 * value, samples=12)

    values = {
        "device": "cpu",
        "threads": threads,
        "read": ceiling(50.0, "GB/s"),
        "copy_rate": ceiling(60.0, "GB/s"),
        "matrix": {"bfloat16": ceiling(1000.0, "GFLOP/s")},
        "cache_bytes": 2**25,
        "measured_at": datetime(2026, 1, 2, tzinfo=UTC),
        "seconds": 4.2,
        "warnings": [],
    }
    return Ceilings(**(values | changes))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MOESCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_they_are_kept_by_machine_and_threads(folder):
    path = ceilings.keep("abc", made(threads=2))
    assert path == folder / "ceilings-abc-2.json"
    assert ceilings.load("abc", 2) == made(threads=2)
    assert ceilings.load("abc", 1) is None
    assert ceilings.load("other", 2) is None
    assert [file.name for file in folder.iterdir()] == [path.name]


def test_later_ones_take_the_place_of_earlier_ones():
    ceilings.keep("abc", made(seconds=1.0))
    ceilings.keep("abc", made(seconds=2.0))
    assert ceilings.load("abc", 2).seconds == 2.0


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"device": "cpu"}'])
def test_a_file_that_holds_none_counts_as_none(folder, content):
    folder.mkdir()
    (folder / "ceilings-abc-2.json").write_text(content)
    assert ceilings.load("abc", 2) is None


def test_a_folder_that_can_not_be_written_to_keeps_nothing(folder):
    folder.write_text("a file in its place")
    assert ceilings.keep("abc", made()) is None


def test_the_folder_is_the_users_where_none_is_named(monkeypatch):
    monkeypatch.delenv("MOESCOPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert ceilings.cache_folder() == Path("/somewhere/moescope")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert ceilings.cache_folder() == Path.home() / ".cache" / "moescope"


def test_limits_take_the_better_bandwidth():
    limits = made().limits("bfloat16")
    assert (limits.bytes_per_s, limits.flops_per_s, limits.cache_bytes) == (60e9, 1000e9, 2**25)
    assert made().limits("bfloat16", resident_bytes=5).resident_bytes == 5


def test_the_bus_is_the_better_of_reading_and_copying():
    assert made().bus == made().copy_rate
    assert made(read=made().copy_rate, copy_rate=made().read).bus.value == 60.0


def test_a_bus_that_was_seen_faster_raises_its_ceiling_and_says_when():
    later = datetime(2026, 2, 3, tzinfo=UTC)
    found = made().raised(79.0, later)
    assert (found.bus.value, found.read, found.measured_at) == (79.0, made().read, later)
    assert found.bus.median == made().bus.median
    assert made().raised(63.0, later) == made()  # 5%: as often as not the luck of one repeat


def test_two_modes_are_shown():
    two = made().read.model_copy(update={"modes": (31.0, 49.5)})
    assert "(copy), in two modes of 31.0 and 49.5" in ceilings.as_text(made(read=two))


def test_the_spread_is_how_far_the_median_lies_below():
    assert made().read.spread == pytest.approx(0.2)


def test_they_are_shown_with_their_spread_and_warnings():
    text = ceilings.as_text(made(warnings=["Other processes took 40% of the processors meanwhile."]))
    assert text.splitlines() == [
        "cpu, 2 threads, 4.2 s",
        "read            50.0 GB/s     median 40.0, lowest 25.0 of 12 (copy)",
        "copy            60.0 GB/s     median 48.0, lowest 30.0 of 12 (copy)",
        "bfloat16     1,000.0 GFLOP/s  median 800.0, lowest 500.0 of 12 (copy)",
        "Other processes took 40% of the processors meanwhile.",
    ]


def test_work_in_int8_has_a_rate_of_its_own_where_it_was_measured():
    assert made().limits("bfloat16").int8_per_s is None
    rates = {name: made().matrix["bfloat16"].model_copy(update={"value": value})
             for name, value in {"bfloat16": 1000.0, ceilings.INT8: 1900.0}.items()}  # fmt: skip
    limits = made(matrix=rates).limits("bfloat16")
    assert (limits.flops_per_s, limits.int8_per_s) == (1e12, 1.9e12)
