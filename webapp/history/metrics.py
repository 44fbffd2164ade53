"""Which numbers of a run make a series (pure): times, so that more is always slower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench_worker.result import STAGES
from webapp.ui.formatting import duration_us

#: By metric: its name, and how many microseconds one of its units has.
WHOLE = {
    "step_us": ("step time", 1.0),
    "ttft_ms": ("TTFT", 1000.0),
    "tpot_ms": ("TPOT", 1000.0),
}
STAGE = "stage."


def numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    """By metric: medians over the steps or requests of a run, in the metric's unit; stages in µs of one MoE layer.
    What was not measured, or took no time, is left out."""
    found = {metric: summary[metric]["p50"] for metric in WHOLE if summary.get(metric)}
    stages = {f"{STAGE}{stage}": summary["stage_us"].get(stage) for stage in STAGES}
    return {metric: value for metric, value in (found | stages).items() if value}


def name(metric: str) -> str:
    """``step time``, ``experts``."""
    return WHOLE[metric][0] if metric in WHOLE else metric.removeprefix(STAGE)


def shown(metric: str, value: float) -> str:
    """With its unit."""
    return duration_us(in_us(metric, value))


def in_us(metric: str, value: float) -> float:
    return value * WHOLE.get(metric, ("", 1.0))[1]
