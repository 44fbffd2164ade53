"""A sweep over load and prompt lengths: throughput against latency, and a heat map of both (pure).

The load is what rises along a curve: concurrency in a closed loop, the rate or the speed-up of arrivals in an open one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, NamedTuple

from bench_worker.result import Summary
from webapp.experiments.present import Seen
from webapp.ui import formatting
from webapp.ui.charts import line_style, token

#: Fields of a condition, by what a reader calls them.
NAMES = {
    "concurrency": "concurrency",
    "rate": "requests a second",
    "speedup": "speed-up",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "requests": "requests",
    "max_batch_tokens": "tokens a step",
}
#: What arrivals have as their load; with one value of it, the concurrency is.
LOADS = {"closed": "concurrency", "poisson": "rate", "trace": "speedup"}
#: Levels of the heat map, from the least value of all cells to the largest.
LEVELS = 5


class Metric(NamedTuple):
    """A figure of a run, None where it has none, and how it is written."""

    name: str
    of: Callable[[Summary], float | None]
    show: Callable[[float | None], str]


def _latency(name: str, field: str, percentile: str) -> Metric:
    def of(summary: Summary) -> float | None:
        found = getattr(summary, field)
        return None if found is None else float(getattr(found, percentile))

    return Metric(f"{name} {percentile}", of, formatting.duration_ms)


#: By what the address calls them: the latencies that throughput is drawn against, and what a heat map shows.
AGAINST = {
    "tpot": _latency("TPOT", "tpot_ms", "p50"),
    "tpot-p95": _latency("TPOT", "tpot_ms", "p95"),
    "ttft": _latency("TTFT", "ttft_ms", "p50"),
    "ttft-p95": _latency("TTFT", "ttft_ms", "p95"),
}
METRICS = {
    "throughput": Metric("output tokens a second", lambda summary: summary.output_tokens_per_s, formatting.number),
    **AGAINST,
    "e2e-p95": _latency("E2E", "e2e_ms", "p95"),
    "goodput": Metric("goodput a second", lambda summary: summary.goodput_per_s, formatting.number),
    "step": Metric("median step", lambda summary: summary.step_us.p50, formatting.duration_us),
}


class Choice(NamedTuple):
    """What a chip of the page offers: its name in the address, what it says, whether it is shown now."""

    key: str
    name: str
    is_chosen: bool


class Point(NamedTuple):
    """A run of the sweep. ``values``: of its condition, by field."""

    run: Seen
    summary: Summary
    values: Mapping[str, Any]


class TradeOff(NamedTuple):
    """Throughput against latency at one prompt length, a curve a variant; of one variant, a curve a length."""

    id: str
    title: str
    config: dict[str, Any]
    label: str


class Cell(NamedTuple):
    run: Seen
    text: str
    level: int


class Heat(NamedTuple):
    """One variant: loads downwards, prompt lengths to the right. A cell is None where no run is."""

    title: str
    lengths: list[str]
    rows: list[tuple[str, list[Cell | None]]]


@dataclass(frozen=True)
class Sweep:
    """``load``: what rises along a curve. ``heats`` is empty where only one of load and length varies."""

    load: str
    against: list[Choice]
    charts: list[TradeOff]
    points: list[Point]
    metrics: list[Choice]
    heats: list[Heat]

    @property
    def rows(self) -> list[tuple[Seen, list[str]]]:
        """Of each run the throughput and every latency, as the table shows them."""
        shown = [METRICS["throughput"], *AGAINST.values()]
        return [(point.run, [metric.show(metric.of(point.summary)) for metric in shown]) for point in self.points]

    @property
    def columns(self) -> list[str]:
        return ["Output tokens a second", *(metric.name for metric in AGAINST.values())]

    @property
    def metric(self) -> str:
        """What the heat maps show."""
        return next(choice.name for choice in self.metrics if choice.is_chosen)


def section(
    document: Mapping[str, Any], plan: Sequence[Mapping[str, Any]], runs: Iterable[Seen], against: str, metric: str
) -> Sweep | None:
    """What `AGAINST` and `METRICS` call ``against`` and ``metric``; the first of them where they are not known. None
    where no load rises, or fewer than two runs have latencies."""
    conditions = _values(document, plan)
    points = [
        Point(run, run.summary, conditions[run.condition])
        for run in runs
        if run.summary is not None and run.summary.output_tokens_per_s is not None
    ]
    load = _load(document["base"]["workload"]["arrivals"], list(conditions.values()))
    if load is None or len(points) < 2:
        return None
    chosen = against if against in AGAINST else next(iter(AGAINST))
    known = {key: one for key, one in METRICS.items() if any(one.of(point.summary) is not None for point in points)}
    shown = metric if metric in known else next(iter(known))
    return Sweep(
        load=NAMES[load],
        against=[Choice(key, one.name, key == chosen) for key, one in AGAINST.items()],
        charts=_trade_offs(points, load, AGAINST[chosen]),
        points=points,
        metrics=[Choice(key, one.name, key == shown) for key, one in known.items()],
        heats=_heats(points, load, known[shown]),
    )


def _values(document: Mapping[str, Any], plan: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By the name of each condition, its fields: its own, else the base's. The plan goes condition by condition."""
    names = dict.fromkeys(planned["condition"] for planned in plan)
    workload = {name: document["base"]["workload"].get(name) for name in NAMES}
    asked = document["conditions"] or [{}]
    return {
        name: workload | {field: value for field, value in condition.items() if value is not None}
        for name, condition in zip(names, asked, strict=True)
    }


def _load(arrivals: str, conditions: Sequence[Mapping[str, Any]]) -> str | None:
    """The field that rises; None where none has several values."""
    for field in (LOADS[arrivals], "concurrency"):
        if len({condition[field] for condition in conditions}) > 1:
            return field
    return None


def _title(values: Mapping[str, Any], fields: Iterable[str]) -> str:
    """``prompt tokens 2,048``: what tells one group of runs from the others."""
    return ", ".join(f"{NAMES[field]} {_shown(values[field])}" for field in fields)


def _shown(value: float | None) -> str:
    return "of the trace" if value is None else f"{value:,g}"


def _varying(points: Sequence[Point], but: Iterable[str]) -> list[str]:
    """Fields with several values, apart from ``but``; the prompt length comes first."""
    several = [field for field in NAMES if len({point.values[field] for point in points}) > 1]
    return sorted(set(several) - set(but), key=lambda field: (field != "prompt_tokens", several.index(field)))


def _grouped(points: Iterable[Point], name: Callable[[Point], str]) -> dict[str, list[Point]]:
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(name(point), []).append(point)
    return groups


def _trade_offs(points: Sequence[Point], load: str, against: Metric) -> list[TradeOff]:
    """A chart for each combination of what varies beside the load."""
    fields = _varying(points, (load,))
    by_corner = _grouped(points, lambda point: _title(point.values, fields))
    if len({point.run.variant for point in points}) == 1:
        only = points[0].run.variant
        return [_trade_off(0, "", {title or only: group for title, group in by_corner.items()}, load, against)]
    return [
        _trade_off(place, title, _grouped(group, lambda point: point.run.variant), load, against)
        for place, (title, group) in enumerate(by_corner.items())
    ]


def _trade_off(place: int, title: str, curves: Mapping[str, Sequence[Point]], load: str, against: Metric) -> TradeOff:
    datasets = [
        {
            "label": name,
            "data": [
                {
                    "x": latency,
                    "y": point.summary.output_tokens_per_s,
                    "label": _shown(point.values[load]),
                    "title": point.run.condition,
                }
                for point in sorted(points, key=lambda point: point.values[load])
                if (latency := against.of(point.summary)) is not None
            ],
            **line_style(number),
        }
        for number, (name, points) in enumerate(curves.items())
    ]
    config = {
        "type": "line",
        "data": {"datasets": datasets},
        "options": {
            "unit": "number",
            "xUnit": "ms",
            "pointLabels": token("paper"),
            "interaction": {"mode": "nearest", "intersect": False},
            "scales": {
                "x": {
                    "type": "linear",
                    "beginAtZero": True,
                    "title": {"display": True, "text": against.name},
                    "ticks": {"maxRotation": 0, "autoSkipPadding": 24},
                },
                "y": {"beginAtZero": True, "title": {"display": True, "text": "output tokens a second"}},
            },
            "plugins": {
                "legend": {"display": len(curves) > 1, "labels": {"usePointStyle": True, "pointStyle": "line"}}
            },
        },
    }
    where = f" at {title}" if title else ""
    label = f"Output tokens a second against {against.name}{where}, {NAMES[load]} rising along each curve"
    return TradeOff(f"trade-off-{place}", title, config, f"{label}; the table below has the numbers.")


def _heats(points: Sequence[Point], load: str, metric: Metric) -> list[Heat]:
    """One for each variant, and for each combination of what varies beside load and length."""
    lengths = _in_order(points, "prompt_tokens")
    loads = _in_order(points, load)
    if min(len(lengths), len(loads)) < 2:
        return []
    values = [value for point in points if (value := metric.of(point.summary)) is not None]
    level = _leveller(min(values), max(values))
    rest = _varying(points, (load, "prompt_tokens"))
    named = _grouped(points, lambda point: ", ".join(filter(None, [point.run.variant, _title(point.values, rest)])))
    heats = []
    for title, group in named.items():
        cells = {
            (point.values[load], point.values["prompt_tokens"]): Cell(point.run, metric.show(value), level(value))
            for point in group
            if (value := metric.of(point.summary)) is not None
        }
        rows = [(_shown(value), [cells.get((value, length)) for length in lengths]) for value in loads]
        heats.append(Heat(title, [_shown(length) for length in lengths], rows))
    return heats


def _in_order(points: Iterable[Point], field: str) -> list[Any]:
    """The values of a field, rising; what the trace decides comes last."""
    return sorted({point.values[field] for point in points}, key=lambda value: (value is None, value))


def _leveller(least: float, most: float) -> Callable[[float], int]:
    """Levels 0 to `LEVELS` - 1 at equal ratios from ``least`` to ``most``; at equal steps where the least is 0."""
    scaled: Callable[[float], float] = log if least > 0 else float
    low, reach = scaled(least), scaled(most) - scaled(least)
    return lambda value: round((LEVELS - 1) * (scaled(value) - low) / reach) if reach else 0
