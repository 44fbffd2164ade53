"""What the ranks of a group send one another around the layers, by hand."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.parallel.group_traffic import GroupTraffic
from bench_worker.parallel.layout import Layout
from tests.bench_worker.parallel.group_wire import HIDDEN, RANKS, TOKENS, TP
from tests.bench_worker.parallel.make import PLAIN
from tools.bench.two_hosts import why_not

ROOT = Path(__file__).resolve().parents[3]

#: Two groups of two, on a node each: 6 tokens and 1, of which 2 and 1 yield; rows of 8 bytes, logits of 100 a rank.
TWO = GroupTraffic(Layout(2, 2, 2), np.array([6, 1]), np.array([2, 1]), row_bytes=8, logits_bytes=100)


def test_an_all_reduce_sends_a_part_to_each_other_rank_twice():
    halves = TWO.phases("attention.all_reduce")
    assert len(halves) == 2
    for half in halves:  # 6 · 8 / 2 and 1 · 8 / 2 bytes
        assert half.tolist() == [[0, 24, 0, 0], [24, 0, 0, 0], [0, 0, 0, 4], [0, 0, 4, 0]]


def test_an_all_gather_sends_own_rows_to_each_other_rank():
    (rows,), (logits,) = TWO.phases("attention.all_gather"), TWO.phases("other.head.all_gather")
    assert rows[0, 1] == rows[1, 0] == 3 * 8
    assert rows[2, 3] == 1 * 8  # one token for two ranks: parts are as large as the largest
    assert (logits[0, 1], logits[2, 3]) == (2 * 100, 1 * 100)


def test_a_step_sends_what_its_marks_say_and_nothing_for_other_stages():
    names = ["other.embedding", "other.embedding.all_reduce", "dispatch", "combine.transfer"]
    names += ["attention.all_reduce", "attention.all_gather"] * 3
    assert TWO.sent(names)[0].tolist() == [0, (1 + 3) * 2 * 24 + 3 * 24, 0, 0]


def test_each_phase_takes_what_an_all_to_all_of_its_bytes_would():
    """A byte takes a microsecond."""
    assert TWO.times_us(PLAIN, "attention.all_reduce").tolist() == [48.0, 48.0, 8.0, 8.0]
    assert TWO.times_us(PLAIN, "attention.all_gather").tolist() == [24.0, 24.0, 8.0, 8.0]


@given(st.sampled_from([2, 4, 8]), st.integers(1, 3), st.integers(0, 500), st.integers(1, 64))
def test_an_all_reduce_sends_as_much_as_a_ring(tp, dp, tokens, row_bytes):
    """2 (t - 1) / t of the bytes a rank (Patarasuk and Yuan 2009), which are multiples of t here; nothing leaves its
    group."""
    layout, every = Layout(tp, dp, 1), np.full(dp, tokens)
    sent = GroupTraffic(layout, every, every, tp * row_bytes, 1).sent(["attention.all_reduce"])
    assert (sent.sum(axis=1) == 2 * (tp - 1) * tokens * row_bytes).all()
    group = layout.group_of_rank()
    assert not sent[group[:, None] != group].any()
    assert not sent.diagonal().any()


def test_real_collectives_send_what_is_counted():
    """All that crosses the loopback of a network of their own, headers and barriers included."""
    if reason := why_not():
        pytest.skip(reason)
    program = ["unshare", "--net", sys.executable, "-m", "tests.bench_worker.parallel.group_wire"]
    told = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True, timeout=240).stdout
    groups = np.full(RANKS // TP, TOKENS)
    traffic = GroupTraffic(Layout(TP, RANKS // TP, 1), groups, groups, row_bytes=HIDDEN * 4, logits_bytes=0)
    for name, sent in json.loads(told).items():
        assert sent == pytest.approx(traffic.sent([f"attention.{name}"]).sum(), rel=0.03), name
