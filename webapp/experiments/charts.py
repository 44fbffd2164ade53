"""From rows to Chart.js configurations (pure); see `webapp.ui.charts` for what the page's script adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench_worker.result import STAGES
from webapp.ui.charts import Unit, stage_colour

#: More bars than this are thinner than a pixel.
MAX_POINTS = 400
#: So many horizontal bars have room for a label each.
MAX_LABELS = 20


def stage_bars(rows: Sequence[tuple[str, Mapping[str, float]]], unit: Unit, most: float = 1) -> dict[str, Any]:
    """One horizontal bar a row, stacked by stage. ``rows``: label and, by stage, milliseconds or shares of 1. The axis
    of shares ends at ``most``."""
    return {
        "type": "bar",
        "data": {"labels": [label for label, _ in rows], "datasets": _stacked([stages for _, stages in rows])},
        "options": {
            "unit": unit,
            "indexAxis": "y",
            "scales": {
                "x": {"stacked": True, **({"max": most} if unit == "percent" else {})},
                "y": {"stacked": True, "grid": {"display": False}, "ticks": {"autoSkip": len(rows) > MAX_LABELS}},
            },
            "plugins": {"legend": {"display": False}},
        },
    }


def timeline(index: Sequence[int], stages_ms: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """One bar a step, stacked by stage. ``stages_ms``: for each stage one value a step, in milliseconds."""
    rows = [{stage: values[i] for stage, values in stages_ms.items()} for i in range(len(index))]
    return {
        "type": "bar",
        "data": {"labels": list(index), "datasets": _stacked(rows)},
        "options": {
            "unit": "ms",
            "interaction": {"mode": "index"},
            "datasets": {"bar": {"categoryPercentage": 1.0, "barPercentage": 1.0}},
            "scales": {
                "x": {
                    "stacked": True,
                    "title": {"display": True, "text": "step"},
                    "grid": {"display": False},
                    "ticks": {"maxRotation": 0, "autoSkipPadding": 24},
                },
                "y": {"stacked": True},
            },
        },
    }


def keep_peaks(values: Sequence[float], limit: int = MAX_POINTS) -> list[int]:
    """At most ``limit`` indices, in order: of every stretch of equal length the one with the largest value.

    All of them where there are no more than ``limit``. A single slow step therefore stays in view at any length.
    """
    if len(values) <= limit:
        return list(range(len(values)))
    stretches = np.array_split(np.asarray(values), limit)
    starts = np.cumsum([0, *(len(stretch) for stretch in stretches[:-1])])
    return [int(start + stretch.argmax()) for start, stretch in zip(starts, stretches, strict=True)]


def _stacked(rows: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """One dataset a stage that any row has, in the order of the stages."""
    present = [stage for stage in STAGES if any(row.get(stage) for row in rows)]
    return [
        {
            "label": stage,
            "data": [round(row.get(stage, 0.0), 4) for row in rows],
            "backgroundColor": stage_colour(stage),
        }
        for stage in present
    ]
