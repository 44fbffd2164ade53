"""The latencies whose p95 has steps behind it."""

from __future__ import annotations

from tests.webapp.experiments import make
from webapp.experiments.tails import tails


def test_they_are_named_as_in_a_table_in_the_order_of_the_latencies() -> None:
    summary = make.result(make.experiment()).runs[0].summary
    assert summary
    assert [(tail.metric, tail.short, tail.found.steps) for tail in tails(summary)] == [
        ("ttft_ms", "TTFT", [0]), ("tpot_ms", "TPOT", [1, 2]),
    ]  # fmt: skip


def test_a_latency_without_steps_behind_it_has_none() -> None:
    summary = make.result(make.experiment()).runs[0].summary
    assert summary
    assert tails(summary.model_copy(update={"tails": {}})) == []
