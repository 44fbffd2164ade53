"""Calibration with small inputs: what is measured, kept apart and warned about."""

import json
import subprocess
from types import SimpleNamespace

import pytest
import torch

from bench_worker import calibrate
from bench_worker.calibrate import Kernel, Probe, calibrate_apart, measure
from bench_worker.errors import Unavailable
from bench_worker.machine_state import Snapshot

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(calibrate, "BUFFER_BYTES", 4096)
    monkeypatch.setattr(calibrate, "PRODUCTS", ((4, 64, 16), (8, 64, 16)))
    monkeypatch.setattr(calibrate.host, "last_level_cache_bytes", lambda: 1024)


def test_every_ceiling_is_the_best_of_its_kernels():
    found = calibrate.calibrate(CPU, threads=3)
    assert (found.device, found.threads, found.cache_bytes) == ("cpu", 3, 1024)
    assert set(found.matrix) == {"float32", "bfloat16", "float16", "int8"}
    for ceiling in (found.read, found.copy_rate, *found.matrix.values()):
        assert 0 < ceiling.lowest <= ceiling.median <= ceiling.value
        assert calibrate.LEAST_ROUNDS <= ceiling.samples <= calibrate.ROUNDS
        assert max(ceiling.by_kernel.values()) == ceiling.by_kernel[ceiling.kernel] == ceiling.value
    assert found.read.unit == found.copy_rate.unit == "GB/s"
    assert found.matrix["float32"].unit == "GFLOP/s"


def made(kernels, device=CPU):
    return calibrate.collect(kernels, device, 1, 0, 1.0, [])


def test_a_ceiling_comes_from_the_fastest_repeat_of_the_fastest_kernel():
    def kernel(ceiling, name, amount, *seconds):
        return Kernel(ceiling, name, lambda turn: None, amount, list(seconds))

    found = made([
        kernel("read", "slow", 1e9, 0.5, 0.4),
        kernel("read", "fast", 2e9, 0.25, 0.5, 0.4),
        kernel("copy", "copy", 1e9, 0.1),
        kernel("bfloat16", "linear", 3e9, 1.0),
    ])  # fmt: skip
    assert (found.read.kernel, found.read.value, found.read.median, found.read.lowest) == ("fast", 8.0, 5.0, 4.0)
    assert found.copy_rate.value == 10.0
    assert {dtype: ceiling.value for dtype, ceiling in found.matrix.items()} == {"bfloat16": 3.0}


def test_the_first_round_warms_up_and_inputs_rotate(monkeypatch):
    turns = []
    kernel = Kernel("read", "read", turns.append, 1.0, [])
    measure([kernel], CPU, rounds=3, seconds=60)
    assert turns == [0, 1, 2, 3]
    assert len(kernel.seconds) == 3


def test_a_format_without_a_fast_kernel_does_not_use_up_the_time(monkeypatch):
    monkeypatch.setattr(calibrate, "TOO_SLOW_S", 0.0)
    kernel = Kernel("float16", "linear", lambda turn: None, 1.0, [])
    measure([kernel], CPU, rounds=9, seconds=60)
    assert len(kernel.seconds) == 1


def test_rounds_end_with_the_time_but_not_before_a_few(monkeypatch):
    kernel = Kernel("read", "read", lambda turn: None, 1.0, [])
    measure([kernel], CPU, rounds=50, seconds=0.0)
    assert len(kernel.seconds) == calibrate.LEAST_ROUNDS


def test_a_busy_machine_is_warned_about(monkeypatch):
    states = iter([Snapshot(0, 0, 0, 0, 0), Snapshot(10, 18, 2, 0, 0)])
    monkeypatch.setattr(calibrate.machine_state, "snapshot", lambda: next(states))
    monkeypatch.setattr(calibrate.host, "PROCESSORS", frozenset({0, 1}))
    (warning,) = calibrate.calibrate(CPU, threads=2).warnings
    assert warning == (
        "Other processes took 80% of the processors meanwhile. The ceilings may be too low: calibrate again on an idle "
        "machine."
    )


def test_a_probe_knows_the_ceilings_around_a_call():
    probe = Probe(CPU, "float32")
    assert probe.calls == 0
    for _ in range(6):
        probe()
    assert probe.calls == 6
    for kernel in probe._kernels:
        kernel.seconds = [1.0] * 6
        kernel.amount = 10.0
    reading = probe._kernels[0]
    reading.seconds[3] = 0.5  # one good moment is no rate
    assert [probe.limits(call, reach=1).bytes_per_s for call in range(6)] == [10] * 6
    reading.seconds[4] = 0.5  # two of three are
    assert [probe.limits(call, reach=1).bytes_per_s for call in range(6)] == [10, 10, 10, 20, 20, pytest.approx(40 / 3)]
    assert probe.limits(3).flops_per_s == 10
    best = probe.ceilings(threads=1)
    assert best.read.value == 20e-9
    assert set(best.matrix) == {"float32"}


def test_a_process_of_its_own_measures_for_a_run(monkeypatch):
    document = made([
        Kernel("read", "read", print, 1e9, [1.0]), Kernel("copy", "copy", print, 1e9, [1.0])
    ]).model_dump(mode="json")  # fmt: skip
    asked = []

    def run(command, **options):
        asked.append(command[1:])
        return SimpleNamespace(returncode=0, stdout=json.dumps({"ceilings": document}), stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    assert calibrate_apart(threads=7).model_dump(mode="json") == document
    assert asked == [["-m", "bench_worker", "calibrate", "--threads", "7", "--json"]]


@pytest.mark.parametrize(("stderr", "said"), [("a\nlast words\n", "last words"), ("", "it ended with -9")])
def test_a_calibration_that_fails_says_how(monkeypatch, stderr, said):
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: SimpleNamespace(returncode=-9, stdout="", stderr=stderr))
    with pytest.raises(Unavailable, match=f"could not be measured: {said}"):
        calibrate_apart(threads=1)
