"""The ceilings of a machine over time as charts (pure); see `webapp.ui.charts` for what the page's script adds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from bench_worker.ceilings import Ceiling
from webapp.experiments.kernel_tables import Calibration, rates
from webapp.ui.charts import line_style

#: What is drawn together, since it has one scale; every other ceiling has a chart of its own.
MEMORY = ("Read", "Copy")


class Chart(NamedTuple):
    id: str
    title: str
    label: str
    config: dict[str, Any]


def charts(calibrations: Sequence[Calibration], tables: Collection[datetime]) -> list[Chart]:
    """One chart of the memory and one of each number format, oldest calibration first; none where there are fewer than
    two to draw a line through. ``calibrations``: latest first, as the page's table has them; ``tables``: when those
    were measured that belong to a table of kernels, which are marked."""
    if len(calibrations) < 2:
        return []
    ordered = calibrations[::-1]
    names = dict.fromkeys(name for one in ordered for name in rates(one.ceilings))
    groups = {"Memory": MEMORY} | {name: (name,) for name in names if name not in MEMORY}
    return [_chart(title, group, ordered, tables) for title, group in groups.items()]


def _chart(title: str, names: Sequence[str], ordered: Sequence[Calibration], tables: Collection[datetime]) -> Chart:
    threads = sorted({one.ceilings.threads for one in ordered})
    found = [rates(one.ceilings) for one in ordered]
    unit = next(each[name].unit for each in found for name in names if name in each)
    lines: list[dict[str, Any]] = []
    for name in names:
        for count in threads:
            own = [
                each.get(name) if one.ceilings.threads == count else None
                for one, each in zip(ordered, found, strict=True)
            ]
            if any(own):
                label = name if len(threads) == 1 else f"{name}, {count} thread{'s' if count > 1 else ''}"
                lines.append(_line(label, own) | line_style(len(lines)))
    with_table = [one.ceilings.measured_at in tables for one in ordered]
    marks = {
        "pointStyle": ["triangle" if mark else "circle" for mark in with_table],
        "pointRadius": [6 if mark else 3 for mark in with_table],
    }
    return Chart(
        id=f"ceiling-{title.lower()}",
        title=title,
        label=f"{title} at best, in {unit}, at each of {len(ordered)} calibrations; triangles came with a table of "
        "kernels. The table below has the figures.",
        config={
            "type": "line",
            "data": {
                "labels": [f"{one.ceilings.measured_at:%Y-%m-%d %H:%M}" for one in ordered],
                "datasets": [line | marks for line in lines],
            },
            "options": {
                "unit": "number",
                "interaction": {"mode": "index", "intersect": False},
                "scales": {
                    "x": {"grid": {"display": False}, "ticks": {"maxRotation": 0, "autoSkipPadding": 24}},
                    "y": {"min": 0, "grace": "5%", "title": {"display": True, "text": unit}},
                },
                "plugins": {"legend": {"display": len(lines) > 1}},
            },
        },
    )


def _line(label: str, own: Sequence[Ceiling | None]) -> dict[str, Any]:
    """Calibrations with another number of threads leave no gap."""
    values = [None if ceiling is None else round(ceiling.value, 3) for ceiling in own]
    return {"label": label, "data": values, "spanGaps": True}
