"""How a part that ended is started again."""

import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from webapp import processes, supervisor
from webapp.processes import Part, StartError
from webapp.supervisor import Product


@pytest.fixture
def said():
    return []


@pytest.fixture
def product(tmp_path, said):
    supervisor.make_data_directory(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Product(tmp_path, "127.0.0.1", listener, said.append)


@pytest.fixture
def clock(monkeypatch):
    """The supervisor's clock, which a test turns by hand."""
    now = [1000.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])
    return now


def ended(product, tmp_path):
    """A running part whose process has ended with code 3."""
    part = Part("Thing", [sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log" / "thing.log")
    process = subprocess.Popen(part.command)
    process.wait()
    return supervisor.Running(part, process, supervisor.time.monotonic())


def test_it_starts_again_later_each_time_it_ends_soon(product, tmp_path, said, clock):
    running = ended(product, tmp_path)
    log = tmp_path / "log" / "thing.log"
    for wait_s in (1, 2, 4, 8, 16, 30, 30):
        product.look_after(running)
        assert said.pop() == f"Thing ended (exit code 3); starting it again in {wait_s} s (log: {log})"
        clock[0] += wait_s - 0.1
        product.look_after(running)
        assert running.start_again_at is not None
        clock[0] += 0.2
        product.look_after(running)
        assert running.start_again_at is None
        running.process.wait()


def test_one_that_ran_for_a_while_starts_with_the_shortest_wait(product, tmp_path, said, clock):
    running = replace(ended(product, tmp_path), backoff_s=30)
    clock[0] += supervisor.RECOVERED_AFTER_S + 1
    product.look_after(running)
    assert "starting it again in 1 s" in said.pop()


def test_one_that_can_not_be_started_is_tried_again_and_the_rest_goes_on(product, tmp_path, said, clock, monkeypatch):
    def refuses(part):
        raise OSError(12, "Cannot allocate memory")

    running = ended(product, tmp_path)
    product.look_after(running)
    clock[0] += 1
    with monkeypatch.context() as full:
        full.setattr(processes, "start", refuses)
        product.look_after(running)
    assert "Thing can't be started (Cannot allocate memory); starting it again in 2 s" in said.pop()
    clock[0] += 2
    product.look_after(running)
    assert running.start_again_at is None
    running.process.wait()


def test_a_full_disk_is_said_and_ends_nothing(product, tmp_path, said, clock, monkeypatch):
    def full(state, data):
        raise OSError(28, "No space left on device")

    running = ended(product, tmp_path)
    product.look_after(running)
    clock[0] += 1
    monkeypatch.setattr(supervisor.State, "write", full)
    product.look_after(running)
    assert said.pop() == f"What runs can't be written down in {tmp_path}: No space left on device"
    assert running.start_again_at is None
    running.process.wait()


@pytest.mark.parametrize(("threads", "limited"), [("1", True), ("2", False)])
def test_it_starts_by_saying_that_the_environment_limits_the_threads(product, said, monkeypatch, threads, limited):
    def stop_here():
        raise StartError("far enough")

    monkeypatch.setattr(product, "_start_servers", stop_here)
    monkeypatch.setattr(supervisor, "usable_cores", lambda processors: 2)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    with pytest.raises(StartError):
        product.start()
    sentence = "OMP_NUM_THREADS=1 in the environment keeps the CPU's work to 1 of 2 cores: unset it, or set CPU threads"
    assert any(line.startswith(sentence) for line in said) is limited
    assert len(said) == 1 + limited


def test_what_web_and_worker_leave_behind_lies_where_the_next_start_tidies_up(product):
    web, worker, _ = product._programs()
    assert web.env["TMPDIR"] == worker.env["TMPDIR"] == str(product.scratch)
