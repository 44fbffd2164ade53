"""Layers timed side by side: the order of the calls, and what each reading belongs to."""

from types import SimpleNamespace

import pytest

from bench_worker import interleave
from bench_worker.interleave import LayerInput, interleaved
from bench_worker.stages import NoClock


class Named:
    """A layer that notes its calls."""

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def forward(self, hidden, scores, clock, token_ids):
        self.calls.append((self.name, hidden, scores))


class Counting(NoClock):
    def __init__(self):
        self.reads = 0

    def read(self):
        self.reads += 1
        return {"layer": float(self.reads)}


@pytest.fixture
def calls():
    return []


INPUTS = [LayerInput("h0", "s0", "t0"), LayerInput("h1", "s1", "t1")]


def test_every_layer_meets_every_input_before_anything_is_timed(calls):
    layers = {name: Named(name, calls) for name in "ab"}
    interleaved(layers, INPUTS, Counting(), rounds=0, seconds=60)
    assert calls == [("a", "h0", "s0"), ("b", "h0", "s0"), ("a", "h1", "s1"), ("b", "h1", "s1")]


def test_the_order_and_the_inputs_rotate_and_all_get_the_same_input(calls):
    layers = {name: Named(name, calls) for name in "abc"}
    readings = interleaved(layers, INPUTS, Counting(), rounds=3, seconds=60)
    assert [name for name, *_ in calls[6:]] == list("abcbcacab")
    assert [reading.name for reading in readings] == list("abcbcacab")
    assert [reading.item for reading in readings] == [0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert [reading.times_us["layer"] for reading in readings] == list(range(1, 10))


def test_something_else_can_run_before_every_timed_call(calls):
    layers = {name: Named(name, calls) for name in "ab"}
    interleaved(layers, INPUTS[:1], Counting(), rounds=2, seconds=60, between=lambda: calls.append("probe"))
    assert "".join(call[0] for call in calls[2:]) == "papbpbpa"


def test_rounds_end_with_the_time_but_not_before_the_third(calls, monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(interleave, "time", SimpleNamespace(monotonic=lambda: next(now)))
    readings = interleaved({"a": Named("a", calls)}, INPUTS, Counting(), rounds=50, seconds=2)
    assert len(readings) == 5  # the clock reads 0 at the start, then 1, 2 and 3 before rounds 4, 5 and 6
