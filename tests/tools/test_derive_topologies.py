from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from bench_worker.parallel.network_fit import held_out_errors, to_toml
from bench_worker.parallel.topology import FILE
from tools.derive_topologies import HEADER, Rows, errors, measured_rows, nccl, topologies, touched, wires

HARDWARE = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "hardware"
needs_rows = pytest.mark.skipif(not HARDWARE.is_dir(), reason="needs the rows of ../shared/data/hardware")


@pytest.fixture(scope="module")
def measured() -> list[Rows]:
    return measured_rows(HARDWARE)


def test_the_message_size_of_nccl_counts_elements():
    """2,048 halves are 4,096 bytes, half of which go to the other of two GPUs."""
    row = {"op_name": "alltoall", "nccl_dtype": "half", "num_gpus": "2", "message_size": "2048", "latency": "0.00685"}
    [rows] = nccl([row, row | {"op_name": "all_gather"}])
    assert (rows.ranks, rows.sent.tolist(), rows.us.tolist()) == (2, [2048.0], [pytest.approx(6.85)])


def test_ranks_that_a_token_touches_are_counted_over_all_choices():
    """8 experts on 4 ranks, 3 distinct experts a token: the mean over all 56 choices."""
    counted = np.mean([len({expert // 2 for expert in chosen}) for chosen in combinations(range(8), 3)])
    assert touched(8, 3, ranks=4) == pytest.approx(counted)


@needs_rows
def test_rows_held_out_of_the_fit_are_met_within_eight_percent(measured: list[Rows]):
    assert {rows.path for rows in measured} == {
        "nvlink-nccl", "nvlink-deepep-ll", *(f"nvlink-deepep-{sms}sm" for sms in (4, 8, 12, 16, 20, 24)),
    }  # fmt: skip
    for rows in measured:
        table, plain = held_out_errors(rows.sent, rows.us)
        assert np.median(table) <= 0.08, rows.path
        assert np.median(table) < np.median(plain), rows.path


@needs_rows
def test_the_file_that_comes_along_is_the_one_that_the_rows_give(measured: list[Rows]):
    paths = wires(measured)
    assert FILE.read_text() == HEADER + to_toml(paths, topologies(paths))


def test_errors_are_printed_beside_those_of_a_plain_fit():
    sent = 2.0 ** np.arange(10, 22)
    head, line = errors([Rows("wire", 8, "dispatch", sent, 10 + sent / 1e4)])
    assert "α + bytes/β" in head
    assert line.split()[:3] == ["wire", "dispatch", "12"]
    assert line.split()[-1] == "0.0%"
