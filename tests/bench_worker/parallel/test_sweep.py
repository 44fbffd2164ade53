"""The network between real ranks, measured and written as a topology of one's own."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench_worker.parallel.sweep import SIZES, as_toml
from bench_worker.parallel.topology import Table, load_topology

ROOT = Path(__file__).resolve().parents[3]


def calibrate(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "bench_worker", "calibrate", *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


def test_what_a_sweep_finds_is_a_topology_that_can_be_used(tmp_path):
    tables = {
        "intra_node": Table(ranks=2, bytes=[1e3, 1e6], us=[10.0, 100.0]),
        "inter_node": Table(ranks=4, bytes=[1e3, 1e6], us=[50.0, 900.0]),
    }
    file = tmp_path / "our network.v2.toml"
    file.write_text(as_toml(tables, "our network.v2", 'a "fast" machine'), "utf-8")
    topology = load_topology(str(file))
    assert topology.name == "our network.v2"
    assert topology.origin(["intra_node", "inter_node"]) == "modelled"
    sent = np.array([[0.0, 1e6], [1e3, 0.0]])
    assert topology.exchange_us(sent, np.array([0, 0])) == pytest.approx([100.0, 100.0])
    assert topology.exchange_us(sent, np.array([0, 1])) == pytest.approx([900.0, 900.0])
    assert 'a "fast" machine' in topology.description


def test_calibrate_measures_real_ranks_and_writes_the_file(tmp_path):
    out = tmp_path / "ours.toml"
    done = calibrate("--ranks", 2, "--out", out)
    assert done.returncode == 0, done.stderr
    (table,) = load_topology(str(out)).paths["intra_node"].tables
    assert table.ranks == 2
    assert table.bytes[0] == pytest.approx(SIZES[0])
    assert table.bytes[-1] == pytest.approx(SIZES[-1], rel=0.01)
    assert "intra_node, 2 ranks" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ranks", 2], "--out: is missing; with --ranks, it names the topology file to write"),
        (["--ranks", 1, "--out", "x.toml"],
         "--ranks: 1 ranks can't exchange anything on 1 hosts; take 2 to 1024, as many on each"),
        (["--ranks", 3, "--out", "x.toml", "--nnodes", 2, "--rdzv", "localhost:1"],
         "--ranks: 3 ranks can't exchange anything on 2 hosts; take 2 to 1024, as many on each"),
    ],
)  # fmt: skip
def test_a_sweep_that_makes_no_sense_is_refused(arguments, sentence):
    done = calibrate(*arguments)
    assert done.returncode == 2
    assert [json.loads(line)["message"] for line in done.stderr.splitlines()] == [sentence]
