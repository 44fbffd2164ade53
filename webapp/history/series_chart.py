"""The chart of a series over its nights (pure); see `webapp.ui.charts` for what the page's script adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from webapp.history import metrics
from webapp.ui.charts import token

if TYPE_CHECKING:
    from webapp.history.series_page import Night


def trend(
    nights: Sequence[Night], low: Sequence[float], high: Sequence[float], changes: Sequence[int], metric: str
) -> dict[str, Any]:
    """A point a night in the band where nights of its level usually lie, changes as large points, and marks on the axis
    where a version was new. ``low``, ``high``: one for each night; ``changes``: places of nights."""

    def us(values: Sequence[float]) -> list[float]:
        return [round(metrics.in_us(metric, value), 3) for value in values]

    values = us([night.value for night in nights])
    lower, upper = us(low), us(high)
    floor = min(lower + values)
    marked = [floor if night.new else None for night in nights]
    bare = {"pointRadius": 0, "borderWidth": 0}
    return {
        "type": "line",
        "data": {
            "labels": [f"{night.at:%Y-%m-%d}" for night in nights],
            "datasets": [
                {
                    "label": metrics.name(metric),
                    "data": values,
                    "borderColor": token("series-2"),
                    "backgroundColor": token("series-2"),
                    "borderWidth": 1.5,
                    "pointRadius": [6 if place in changes else 1.5 for place in range(len(nights))],
                },
                {"label": "usually above", "data": lower, "fill": False, **bare},
                {
                    "label": "usually below",
                    "data": upper,
                    "fill": "-1",
                    "backgroundColor": token("accent-wash"),
                    **bare,
                },
                {
                    "label": "new version",
                    "data": marked,
                    "showLine": False,
                    "pointStyle": "triangle",
                    "pointRadius": 6,
                    "backgroundColor": token("muted"),
                    "borderColor": token("muted"),
                },
            ],
        },
        "options": {
            "unit": "us",
            "interaction": {"mode": "index", "intersect": False},
            "scales": {"x": {"grid": {"display": False}, "ticks": {"maxRotation": 0, "autoSkipPadding": 24}}},
            "plugins": {"legend": {"display": False}},
        },
    }
