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


def test_a_layer_is_timed_right_after_steps_of_its_own(calls, monkeypatch):
    now = 0.0

    class Taking(Named):
        def __init__(self, name, calls, seconds):
            super().__init__(name, calls)
            self.seconds = seconds

        def forward(self, *args):
            nonlocal now
            now += self.seconds
            super().forward(*args)

    monkeypatch.setattr(interleave, "time", SimpleNamespace(monotonic=lambda: now))
    layers = {name: Taking(name, calls, seconds) for name, seconds in (("short", 0.25), ("long", 0.75), ("slow", 6.0))}
    told = Counting()
    between = lambda: calls.append(("probe", told.reads))  # noqa: E731
    inputs = [*INPUTS, LayerInput("h2", "s2", "t2")]
    readings = interleaved(layers, inputs, told, rounds=1, seconds=60, between=between, lead_in_s=0.5)
    assert [call[:2] for call in calls[9:]] == [
        ("probe", 0), ("short", "h1"), ("short", "h2"), ("short", "h0"),  # never on the input that is timed
        ("probe", 1), ("long", "h1"), ("long", "h0"),
        ("probe", 2), ("slow", "h0"),
    ]  # fmt: skip
    assert [(reading.name, reading.item) for reading in readings] == [("short", 0), ("long", 0), ("slow", 0)]


def test_rounds_end_with_the_time_but_not_before_the_third(calls, monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(interleave, "time", SimpleNamespace(monotonic=lambda: next(now)))
    readings = interleaved({"a": Named("a", calls)}, INPUTS, Counting(), rounds=50, seconds=2)
    assert len(readings) == 5  # the clock reads 0 at the start, then 1, 2 and 3 before rounds 4, 5 and 6
