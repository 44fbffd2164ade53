"""The stages' clock, with a clock of the test's own in place of the machine's."""

import pytest
import torch

from bench_worker import stages
from bench_worker.stages import StageClock, WholeClock

CPU = torch.device("cpu")


@pytest.fixture
def ticks(monkeypatch):
    """Make ``perf_counter_ns`` return the given nanoseconds, one a mark."""

    def set_ticks(*nanoseconds):
        times = iter(nanoseconds)
        monkeypatch.setattr(stages.time, "perf_counter_ns", lambda: next(times))

    return set_ticks


def test_a_stage_is_the_time_since_the_mark_before(ticks):
    ticks(1000, 3000, 10_000)
    clock = StageClock(CPU)
    clock.begin()
    clock.inner("route")
    clock.outer("layer")
    assert clock.read() == {"route": 2.0, "layer": 7.0}


def test_marks_of_the_same_name_add_up(ticks):
    ticks(0, 1000, 4000, 6000)
    clock = StageClock(CPU)
    clock.begin()
    for name in ("experts", "combine", "experts"):
        clock.inner(name)
    assert clock.read() == {"experts": 3.0, "combine": 3.0}


def test_the_whole_clock_leaves_the_inner_marks_out(ticks):
    ticks(0, 2000, 9000)
    clock = WholeClock(CPU)
    clock.begin()
    clock.outer("attention")
    clock.inner("route")
    clock.inner("experts")
    clock.outer("layer")
    assert clock.read() == {"attention": 2.0, "layer": 7.0}


def test_begin_forgets_the_step_before(ticks):
    ticks(0, 5000, 6000, 7000)
    clock = StageClock(CPU)
    clock.begin()
    clock.inner("old")
    clock.begin()
    clock.inner("new")
    assert clock.read() == {"new": 1.0}


def test_the_real_clock_runs_forward():
    clock = StageClock(CPU)
    clock.begin()
    sum(range(10_000))
    clock.inner("work")
    assert clock.read()["work"] > 0


def test_time_that_belongs_to_no_stage_is_not_read(ticks):
    ticks(0, 1000, 5000, 6000)
    clock = StageClock(CPU)
    clock.begin()
    clock.outer("layer")
    clock.outer(stages.UNTIMED)
    clock.inner("route")
    assert clock.read() == {"layer": 1.0, "route": 1.0}


def test_a_clock_that_keeps_nothing_reads_nothing():
    clock = stages.NoClock()
    clock.begin()
    clock.inner("route")
    clock.outer("layer")
    assert clock.read() == {}
