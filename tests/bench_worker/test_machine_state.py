"""What else happened on the machine: snapshots made by hand, and system folders of the test's own."""

import pytest

from bench_worker import machine_state
from bench_worker.machine_state import Snapshot, flags, governor_flag, snapshot, threads_flag

BEFORE = Snapshot(wall_s=100.0, busy_s=50.0, own_s=20.0, stolen_s=1.0, throttled=3)


def after(busy=0.0, own=0.0, stolen=0.0, throttled=0):
    return Snapshot(110.0, 50.0 + busy, 20.0 + own, 1.0 + stolen, 3 + throttled)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"busy": 20, "own": 20}, None),
        ({"busy": 10, "own": 2}, "Other processes took 40% of the processors meanwhile."),
        ({"busy": 20.9, "own": 20}, None),  # 4.5%
        ({"stolen": 4}, "The hypervisor took 20% of the processors away meanwhile."),
        ({"throttled": 1200}, "The processors throttled 1,200 times meanwhile because of heat."),
    ],
)
def test_what_makes_times_doubtful_is_said(change, words):
    assert flags(BEFORE, after(**change), processors=2) == ([] if words is None else [words])


def test_several_things_are_said_one_by_one():
    assert len(flags(BEFORE, after(busy=15, stolen=3, throttled=1), processors=2)) == 3


def test_a_process_that_works_sees_its_own_time():
    before = snapshot()
    while snapshot().own_s - before.own_s < 0.05:
        pass
    later = snapshot()
    assert later.wall_s > before.wall_s
    assert later.busy_s > before.busy_s
    assert later.throttled >= before.throttled


@pytest.mark.parametrize(
    ("governor", "words"),
    [
        (None, None),
        ("performance", None),
        ("performance and powersave", "governed by performance and powersave: times may vary"),
        ("schedutil", "governed by schedutil: times may vary"),
    ],
)
def test_a_clock_that_is_not_set_to_performance_is_flagged(governor, words):
    said = governor_flag(governor)
    assert said is None if words is None else words in said


@pytest.mark.parametrize(
    ("environ", "cores", "words"),
    [
        ({}, 8, None),
        ({"OMP_NUM_THREADS": "8"}, 8, None),
        ({"OMP_NUM_THREADS": "16"}, 8, None),
        ({"OMP_NUM_THREADS": "1"}, 1, None),
        ({"OMP_NUM_THREADS": "1"}, 8, "OMP_NUM_THREADS=1 in the environment keeps the CPU's work to 1 of 8 cores: "
                                      "unset it, or set CPU threads in the experiment."),
        ({"OMP_NUM_THREADS": "4,2"}, 8, "OMP_NUM_THREADS=4,2 in the environment keeps the CPU's work to 4 of 8 cores"),
        ({"MKL_NUM_THREADS": "2"}, 8, "MKL_NUM_THREADS=2 in the environment keeps the CPU's work to 2 of 8 cores"),
        ({"MKL_NUM_THREADS": "2", "OMP_NUM_THREADS": "8"}, 8, "MKL_NUM_THREADS=2 in"),  # torch obeys MKL's
        ({"MKL_NUM_THREADS": "8", "OMP_NUM_THREADS": "2"}, 8, None),
        ({"MKL_NUM_THREADS": "none", "OMP_NUM_THREADS": "2"}, 8, "OMP_NUM_THREADS=2 in"),
        ({"OMP_NUM_THREADS": ""}, 8, None),
        ({"OMP_NUM_THREADS": "0"}, 8, None),
        ({"OMP_NUM_THREADS": "-1"}, 8, None),
        ({"OMP_NUM_THREADS": "²"}, 8, None),
    ],
)  # fmt: skip
def test_threads_that_the_environment_keeps_below_the_cores_are_flagged(environ, cores, words, monkeypatch):
    monkeypatch.setattr(machine_state.platform, "machine", lambda: "x86_64")
    said = threads_flag(environ, cores)
    assert said is None if words is None else said.startswith(words)


def test_mkl_s_variable_decides_nothing_where_torch_has_no_mkl(monkeypatch):
    monkeypatch.setattr(machine_state.platform, "machine", lambda: "aarch64")
    assert threads_flag({"MKL_NUM_THREADS": "1"}, 8) is None
    assert "OMP_NUM_THREADS=2" in threads_flag({"MKL_NUM_THREADS": "8", "OMP_NUM_THREADS": "2"}, 8)
