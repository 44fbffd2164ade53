"""What else happened on the machine: snapshots made by hand, and system folders of the test's own."""

import pytest

from bench_worker.machine_state import Snapshot, flags, governor_flag, snapshot

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
