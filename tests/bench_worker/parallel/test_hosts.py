"""Two network namespaces as two hosts: a run over both of them, and what it puts on the wire."""

import json
import sys
from pathlib import Path

import pytest

from bench_worker.result import Result
from tools.bench.host_exchange import ROUNDS, ROWS_BYTES
from tools.bench.hosts import measured
from tools.bench.two_hosts import limit, ranks_say, two_hosts, why_not

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def hosts():
    if reason := why_not():
        pytest.skip(reason)
    with two_hosts() as both:
        yield both


def test_a_run_over_two_hosts_completes(hosts, tiny_config, tmp_path):
    file, out = tmp_path / "experiment.json", tmp_path / "result.json"
    file.write_text(json.dumps({
        "base": {
            "model": str(tiny_config), "kernels": {"attention": False, "dtype": "float32"},
            "parallel": {"mode": "distributed", "layout": {"tp": 1, "dp": 2, "nodes": 2}},
            "workload": {"requests": 4, "prompt_tokens": 5, "output_tokens": 4, "concurrency": 2},
        }
    }))  # fmt: skip
    command = [sys.executable, "-m", "bench_worker", "run", str(file), "--nnodes", "2"]
    command += ["--rdzv", f"{hosts[0].address}:29512", "--node-rank"]
    started = [hosts[0].start([*command, "0", "--out", str(out)], cwd=ROOT), hosts[1].start([*command, "1"], cwd=ROOT)]
    try:
        assert [one.wait(200) for one in started] == [0, 0]
    finally:
        for one in started:
            one.kill()
            one.wait()
    (run,) = Result.model_validate_json(out.read_bytes()).runs
    assert run.status == "ok"
    assert [set(rank.bytes["intra_node"]) for rank in run.steps.ranks] == [{0}, {0}]
    assert all(sum(rank.bytes["inter_node"]) > 0 for rank in run.steps.ranks)


def test_the_bytes_that_are_counted_go_over_the_wire(hosts):
    for rank in measured(hosts, steps=5, ways="both"):
        # Ethernet, IP and TCP headers, acknowledgements, and what ranks tell each other beside the rows
        assert 1 < rank["wire_bytes"] / rank["counted_bytes"] < 1.08


@pytest.fixture(scope="module")
def slow_hosts():
    if reason := why_not():
        pytest.skip(reason)
    with two_hosts() as both:
        limit(both, "200mbit")
        yield both


def test_an_exchange_over_a_slow_wire_ends_when_its_rows_are_there(slow_hosts):
    sender, _ = ranks_say(slow_hosts, "tools.bench.host_exchange", "own", "one")
    assert all(one["left_bytes"] > ROWS_BYTES for one in sender)


def test_rows_of_both_ranks_are_on_a_slow_wire_at_once(slow_hosts):
    first, last = ranks_say(slow_hosts, "tools.bench.host_exchange", "own", "both")
    together = [
        max(one["on_wire_ms"][0], other["on_wire_ms"][0]) < min(one["on_wire_ms"][1], other["on_wire_ms"][1])
        for one, other in zip(first, last, strict=True)
    ]
    assert sum(together) > ROUNDS / 2
