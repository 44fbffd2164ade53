"""Charts of the ranks of a run as Chart.js configurations (pure); see `webapp.ui.charts`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from webapp.experiments import charts
from webapp.ui.charts import Unit, stage_colour

#: More bars, or more rows of a matrix, than this can't be told apart.
MAX_RANKS = 64


def timeline(stages: Sequence[str], times_us: Sequence[Sequence[float]]) -> dict[str, Any]:
    """A bar a rank: its stages, then what it waits. ``times_us``: by rank, of each of ``stages`` and of waiting. Of too
    many ranks the busiest of every stretch is drawn."""
    kept = charts.keep_peaks([sum(times[:-1]) for times in times_us], MAX_RANKS)
    names = (*stages, "idle")
    bars = [
        (f"rank {rank}", {name: us / 1000 for name, us in zip(names, times_us[rank], strict=True)}) for rank in kept
    ]
    return charts.stage_bars(bars, "ms")


def load(of_mean: np.ndarray) -> dict[str, Any]:
    """A bar a rank [R]: its load against the mean."""
    kept = charts.keep_peaks(of_mean.tolist(), MAX_RANKS)
    return _upright("rank", kept, [float(of_mean[rank]) for rank in kept], "× the mean rank", "experts", "number")


def idle(steps: Sequence[int], share: np.ndarray) -> dict[str, Any]:
    """A bar a step [S]: the part of the ranks' time that they wait, of 1."""
    kept = charts.keep_peaks(share.tolist())
    values = [float(share[place]) for place in kept]
    return _upright("step", [steps[place] for place in kept], values, "waiting", "idle", "percent")


def _upright(
    noun: str, labels: Sequence[int], values: Sequence[float], name: str, stage: str, unit: Unit
) -> dict[str, Any]:
    data = [round(value, 4) for value in values]
    return {
        "type": "bar",
        "data": {
            "labels": list(labels),
            "datasets": [{"label": name, "data": data, "backgroundColor": stage_colour(stage)}],
        },
        "options": {
            "unit": unit,
            "scales": {
                "x": {
                    "title": {"display": True, "text": noun},
                    "grid": {"display": False},
                    "ticks": {"maxRotation": 0, "autoSkipPadding": 24},
                },
                "y": {"min": 0},
            },
            "plugins": {"legend": {"display": False}},
        },
    }
