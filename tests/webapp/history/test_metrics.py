"""The numbers of a run that make series."""

from __future__ import annotations

from webapp.history import metrics

SUMMARY = {
    "step_us": {"p50": 4200.0},
    "ttft_ms": {"p50": 12.0},
    "tpot_ms": None,
    "stage_us": {"route": 30.0, "route.gate": 20.0, "experts": 300.0, "idle": 0.0},
}


def test_medians_and_stages_but_neither_sub_stages_nor_what_took_no_time() -> None:
    assert metrics.numbers(SUMMARY) == {"step_us": 4200.0, "ttft_ms": 12.0, "stage.route": 30.0, "stage.experts": 300.0}


def test_names_and_units() -> None:
    assert [metrics.name(metric) for metric in ("step_us", "stage.experts")] == ["step time", "experts"]
    assert metrics.shown("ttft_ms", 12.0) == metrics.shown("step_us", 12000.0) == "12.0\xa0ms"
