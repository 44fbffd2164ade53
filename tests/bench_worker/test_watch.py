"""Probes of the machine around runs, on kernels that take a made-up time."""

from types import SimpleNamespace

import pytest
import torch

from bench_worker import calibrate, watch
from bench_worker.calibrate import Kernel
from bench_worker.noise import Seen
from bench_worker.recording import RunRecord
from bench_worker.watch import Key, Watch
from tests.bench_worker.test_ceilings import made

CPU = torch.device("cpu")
ONE, TWO = Key(torch.get_num_threads(), "bfloat16"), Key(torch.get_num_threads(), "float32")


def kept(**changes):
    """Read at 50 GB/s and copied at 60; torch's own product of bfloat16 reached 900 of 1,000 GFLOP/s."""
    matrix = made().matrix["bfloat16"].model_copy(update={"by_kernel": {"plain": 900.0}})
    return made(**{"matrix": {"bfloat16": matrix, "float32": made().matrix["bfloat16"]}} | changes)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """What the kernels take in seconds, and the time; a probe of the memory moves the clock on by both its turns."""
    state = SimpleNamespace(bus=[0.02, 0.01], product=0.5, now=100.0, made=[])
    memory, product = Kernel("copy", "copy", len, 0.5e9, []), Kernel("bfloat16", "plain", len, 400e9, [])

    def noted(name, kernel):
        state.made.append(name)
        return kernel

    monkeypatch.setattr(calibrate, "bus_kernel", lambda device, name: noted(name, memory if name == "copy" else None))
    monkeypatch.setattr(calibrate, "plain_product", lambda device, dtype: noted(dtype, product))

    def cpu_seconds(run, turn):
        state.now += 0.01
        return state.seconds[run](turn)

    memory.run, product.run = object(), object()
    state.seconds = {memory.run: lambda turn: state.bus[turn], product.run: lambda turn: state.product}
    monkeypatch.setattr(calibrate, "cpu_seconds", cpu_seconds)
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: state.now))
    yield state
    torch.set_num_threads(ONE.threads)


def test_a_probe_is_noted_for_all_runs_that_take_turns():
    records = [RunRecord(), RunRecord()]
    Watch(CPU, [ONE], {ONE.threads: kept()}).look([(ONE, records[0]), (ONE, records[1])])
    for record in records:
        assert record.seen == [Seen(memory=50.0, matrix=800.0)]  # half a gigabyte in the better turn of 10 ms
        assert record.usual == Seen(memory=60.0, matrix=900.0)


def test_a_product_that_was_not_calibrated_is_not_probed():
    record = RunRecord()
    Watch(CPU, [TWO], {TWO.threads: kept()}).look([(TWO, record)])
    assert record.seen == [Seen(memory=50.0, matrix=None)]
    assert record.usual == Seen(memory=60.0, matrix=None)


@pytest.mark.parametrize(
    "ceilings", [{}, {ONE.threads: kept(copy_rate=made().copy_rate.model_copy(update={"kernel": "?"}))}]
)
def test_without_ceilings_of_kernels_that_it_has_nothing_is_probed(ceilings):
    record, probes = RunRecord(), Watch(CPU, [ONE], ceilings)
    probes.look([(ONE, record)])
    assert (record.seen, record.usual, probes.is_due) == ([], None, False)


def test_probes_take_half_a_percent_of_the_time_at_most(machine):
    probes = Watch(CPU, [ONE], {ONE.threads: kept()})
    assert probes.is_due
    probes.look([(ONE, RunRecord())])  # three turns of 10 ms
    machine.now += 0.03 / watch.COST - 0.1
    assert not probes.is_due
    machine.now += 0.2
    assert probes.is_due


def test_a_bus_that_was_seen_faster_than_calibrated_raises_the_ceiling(machine):
    probes = Watch(CPU, [ONE], {ONE.threads: kept()})
    assert probes.raised({ONE.threads: kept(), 9: kept()}) == {ONE.threads: kept(), 9: kept()}
    machine.bus = [0.01, 0.005]
    probes.look([(ONE, record := RunRecord())])
    found = probes.raised({ONE.threads: kept(), 9: kept()})
    assert (found[ONE.threads].bus.value, found[9]) == (100.0, kept())
    assert record.usual.memory == 60.0  # what it was before


def test_each_number_of_threads_has_probes_of_its_own(machine):
    threads = torch.get_num_threads()
    other = Key(threads + 1, "bfloat16")
    probes = Watch(CPU, [ONE, other], {threads: kept(), threads + 1: kept(threads=threads + 1)})
    one, two = RunRecord(), RunRecord()
    probes.look([(ONE, one), (other, two)])
    assert torch.get_num_threads() == threads + 1
    assert (len(one.seen), len(two.seen)) == (1, 1)
    assert machine.made == ["copy", "bfloat16"]  # buffers are shared
