"""Charts of a comparison, as Chart.js configurations (pure); see `webapp.ui.charts`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any, NamedTuple

import numpy as np

from bench_worker.ceilings import INT8, Ceilings
from bench_worker.roofline import Limits
from webapp.experiments.charts import MAX_POINTS
from webapp.experiments.compare import STEP, common_steps
from webapp.experiments.compare_table import Contender, Table
from webapp.ui.charts import stage_colour, token

#: Contenders that are drawn in a chart of lines or points; tables have all.
DRAWN = 5
#: Corners that have a chart of their own.
CORNERS = 12
_MARKS = ("circle", "triangle", "rect", "rectRot", "star")
_SHAPES = ("circle", "triangle", "square", "diamond", "star")
_SIGNS = {"faster": "good", "slower": "bad"}


class Chart(NamedTuple):
    """``note`` says what is left out."""

    id: str
    title: str
    config: dict[str, Any]
    label: str
    note: str = ""
    size: str = ""


class Bar(NamedTuple):
    """The interval of a ratio."""

    name: str
    low: float
    high: float
    verdict: str


def intervals(table: Table) -> list[Chart]:
    """A chart a corner: each contender's change against the baseline, as a bar over its 95% interval. All share one
    scale."""
    base = table.base.contender.name
    found = []
    for place, corner in enumerate(table.corners):
        bars = [
            Bar(row.contender.name, *step.found.ci95, step.verdict)
            for row in table.others
            if (step := row.cells[place].step) and step.found and step.found.ci95
        ]
        if bars:
            found.append((corner, bars))
    ends = [end - 1 for _, bars in found for bar in bars for end in (bar.low, bar.high)]
    if not ends:
        return []
    low, high = (floor(min(ends) * 20) / 20, ceil(max(ends) * 20) / 20)
    scale = {"min": min(low, 0), "max": max(high, 0.05)}
    return [
        Chart(
            f"change-{number}",
            corner,
            _intervals(bars, scale),
            f"Change of the median step against {base} at {corner}, with its 95% interval; the table has the numbers.",
            size="low" if len(bars) <= 4 else "" if len(bars) <= 10 else "tall",
        )
        for number, (corner, bars) in enumerate(found[:CORNERS])
    ]


def _intervals(bars: Sequence[Bar], scale: dict[str, float]) -> dict[str, Any]:
    least = (scale["max"] - scale["min"]) / 80  # what is narrower would hardly be seen
    data = []
    for bar in bars:
        middle, half = (bar.low + bar.high) / 2 - 1, max(bar.high - bar.low, least) / 2
        data.append([round(middle - half, 5), round(middle + half, 5)])
    colours = [token(_SIGNS.get(bar.verdict, "muted")) for bar in bars]
    return {
        "type": "bar",
        "data": {
            "labels": [bar.name for bar in bars],
            "datasets": [{"label": "change", "data": data, "backgroundColor": colours, "maxBarThickness": 10}],
        },
        "options": {
            "unit": "percent",
            "indexAxis": "y",
            "scales": {"x": scale, "y": {"grid": {"display": False}}},
            "plugins": {"legend": {"display": False}, "tooltip": {"enabled": False}},
        },
    }


def differences(contenders: Iterable[Contender], base: Contender, corner: str) -> Chart | None:
    """Step by step, how much longer each contender took than the baseline on the same batch. None where none shares
    batches with it."""
    ours = base.runs.get(corner)
    if ours is None:
        return None
    lines = []
    for contender in contenders:
        run = contender.runs.get(corner)
        if run is None or contender is base or ours.summary.rounds is not None or run.summary.rounds is not None:
            continue
        if common := common_steps(ours, run):
            change = run.parts[STEP][:common] / ours.parts[STEP][:common] - 1
            lines.append((contender.name, ours.batches["index"][:common], change))
    if not lines:
        return None
    datasets = [
        {
            "label": name,
            "data": [{"x": x, "y": round(y, 5)} for x, y in thinned(index, change)],
            "borderColor": token(f"series-{place % DRAWN + 1}"),
            "backgroundColor": token(f"series-{place % DRAWN + 1}"),
            "pointStyle": _MARKS[place],
            "radius": 2,
        }
        for place, (name, index, change) in enumerate(lines[:DRAWN])
    ]
    steps = max(len(index) for _, index, _ in lines)
    notes = [
        f"A point is the median of up to {ceil(steps / MAX_POINTS)} steps." if steps > MAX_POINTS else "",
        f"The first {DRAWN} of {len(lines)} are drawn." if len(lines) > DRAWN else "",
    ]
    config = {
        "type": "scatter",
        "data": {"datasets": datasets},
        "options": {
            "unit": "percent",
            "scales": {"x": {"title": {"display": True, "text": "step"}, "ticks": {"maxRotation": 0}}},
            "plugins": {"legend": {"labels": {"usePointStyle": True, "boxWidth": 7, "boxHeight": 5}}},
        },
    }
    label = f"Each step at {corner} against the same step of {base.name}; below 0 is faster. The table has the medians."
    return Chart("differences", f"Step by step at {corner}", config, label, " ".join(filter(None, notes)))


def thinned(x: np.ndarray, y: np.ndarray, most: int = MAX_POINTS) -> list[tuple[float, float]]:
    """At most ``most`` points: of every stretch of equal length the first ``x`` and the median ``y``."""
    if len(x) <= most:
        return list(zip(x.tolist(), y.tolist(), strict=True))
    stretches = np.array_split(np.arange(len(x)), most)
    return [(float(x[stretch[0]]), float(np.median(y[stretch]))) for stretch in stretches]


class Point(NamedTuple):
    """A stage of a run: FLOPs a byte, FLOPs a second, its share of the floor, and what holds it up."""

    name: str
    stage: str
    intensity: float
    flops_per_s: float
    share: float
    bound: str

    @property
    def gflops(self) -> float:
        return self.flops_per_s / 1e9


@dataclass(frozen=True)
class Roofline:
    """``roofs`` in words, one a kind of machine and number format."""

    chart: Chart
    points: list[Point]
    roofs: list[str]


def roofline(contenders: Iterable[Contender], corner: str) -> Roofline | None:
    """Every stage that computes: how much it computes a byte, and how fast, below what the device can do (Williams,
    Waterman and Patterson, CACM 2009). None where no run tells."""
    points: list[Point] = []
    roofs: dict[str, Limits] = {}
    places: dict[str, int] = {}
    for contender in contenders:
        run = contender.runs.get(corner)
        if run is None:
            continue
        for stage, limit in run.summary.limits.items():
            if "." not in stage and limit.intensity and limit.flops_per_s:
                points.append(
                    Point(contender.name, stage, limit.intensity, limit.flops_per_s, limit.share, limit.bound)
                )
                places.setdefault(contender.name, len(places))
        kernels = run.spec.kernels
        for name in (kernels.dtype, *({INT8} & {kernels.quantization})):
            if run.ceilings is not None and name in run.ceilings.matrix:
                roofs[_roof_name(run.ceilings, name)] = run.ceilings.limits(name)
    if not points or not roofs:
        return None
    drawn = [point for point in points if places[point.name] < DRAWN]
    ends = [point.intensity for point in drawn]
    ridges = [roof.flops_per_s / roof.bytes_per_s for roof in roofs.values()]
    low, high = min([*ends, *ridges]) / 2, max([*ends, *ridges]) * 2
    lines = [
        {
            "type": "line",
            "label": name,
            "data": [
                {"x": x, "y": min(roof.flops_per_s, x * roof.bytes_per_s) / 1e9} for x in sorted((low, ridge, high))
            ],
            "borderColor": token("line-strong"),
            "borderWidth": 1.5,
            "pointRadius": 0,
        }
        for (name, roof), ridge in zip(roofs.items(), ridges, strict=True)
    ]
    marks = [
        {
            "label": f"{point.stage}, {point.name}",
            "data": [{"x": round(point.intensity, 4), "y": round(point.gflops, 4)}],
            "backgroundColor": stage_colour(point.stage),
            "borderColor": stage_colour(point.stage),
            "pointStyle": _MARKS[places[point.name]],
            "radius": 6,
        }
        for point in drawn
    ]
    axis = {"type": "logarithmic", "title": {"display": True}}
    config = {
        "type": "scatter",
        "data": {"datasets": [*marks, *lines]},
        "options": {
            "unit": "number",
            "scales": {
                "x": {**axis, "title": {"display": True, "text": "FLOPs a byte"}, "ticks": {"maxTicksLimit": 8}},
                "y": {**axis, "title": {"display": True, "text": "GFLOP/s"}, "ticks": {"maxTicksLimit": 8}},
            },
            "plugins": {"legend": {"display": False}},
        },
    }
    shapes = [f"{name} {_SHAPES[place]}" for name, place in places.items() if place < DRAWN]
    note = f"Shapes: {', '.join(shapes)}." if len(places) > 1 else ""
    if len(places) > DRAWN:
        note += f" The first {DRAWN} of {len(places)} are drawn."
    label = f"Stages at {corner} below what the device can do at best; the table has the numbers."
    return Roofline(Chart("roofline", f"at {corner}", config, label, note), points, list(roofs))


def _roof_name(ceilings: Ceilings, dtype: str) -> str:
    bandwidth = max(ceilings.read.value, ceilings.copy_rate.value)
    return f"{ceilings.device}, {dtype}: {bandwidth:,.0f} GB/s and {ceilings.matrix[dtype].value:,.0f} GFLOP/s"
