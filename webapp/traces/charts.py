"""From a trace's shape and a recording's figures to Chart.js configurations (pure); see `webapp.ui.charts`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from webapp.traces.shape import Arrivals, Lengths
from webapp.ui.charts import Unit, token
from webapp.ui.formatting import count, span


def length_bars(found: Lengths, what: str) -> dict[str, Any]:
    """One bar a range of lengths, in tokens of ``what``."""
    return _bars(length_labels(found), found["counts"], "requests", f"{what} tokens", "count")


def arrival_bars(found: Arrivals) -> dict[str, Any]:
    """One bar a slot of time."""
    title = f"since the first arrival, in slots of {slot(found['width_s'])}"
    return _bars(slot_labels(found), found["counts"], "requests", title, "count")


def imbalance_bars(layers: Sequence[int], imbalance: Sequence[float]) -> dict[str, Any]:
    """One bar a layer: its hottest expert against the mean."""
    return _bars([str(layer) for layer in layers], imbalance, "maximum / mean", "layer", "number")


def length_labels(found: Lengths) -> list[str]:
    """``91–127``, or ``3`` for a range of one length."""
    return [
        count(low) if high - low == 1 else f"{count(low)}–{count(high - 1)}" for low, high in pairwise(found["edges"])
    ]


def slot_labels(found: Arrivals) -> list[str]:
    """When each slot begins."""
    return [slot(number * found["width_s"]) for number in range(len(found["counts"]))]


def slot(seconds: float) -> str:
    """A time in a trace, exact below an hour."""
    if seconds >= 60:
        minutes, rest = divmod(round(seconds), 60)
        return f"{span(minutes * 60)} {rest}\N{NO-BREAK SPACE}s" if rest and minutes < 60 else span(seconds)
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "\N{NO-BREAK SPACE}s"


def _bars(labels: Sequence[str], values: Sequence[float], label: str, axis: str, unit: Unit) -> dict[str, Any]:
    return {
        "type": "bar",
        "data": {
            "labels": list(labels),
            "datasets": [{"label": label, "data": list(values), "backgroundColor": token("accent")}],
        },
        "options": {
            "unit": unit,
            "datasets": {"bar": {"categoryPercentage": 1.0, "barPercentage": 0.92}},
            "scales": {
                "x": {
                    "title": {"display": True, "text": axis},
                    "grid": {"display": False},
                    "ticks": {"maxRotation": 0, "autoSkipPadding": 16},
                },
                "y": {"beginAtZero": True},
            },
            "plugins": {"legend": {"display": False}},
        },
    }
