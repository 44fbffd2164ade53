"""What the room's pages show, read in a constant number of queries each."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from django.db.models import Count, Q, QuerySet

from bench_worker.workload.generators import GENERATORS
from webapp.traces import charts, recording_store
from webapp.traces.models import Entry, Recording, Trace
from webapp.traces.uploads import RecordingForm, TraceForm
from webapp.ui import heat

#: Experiments that a page names of those that use an entry.
RECENT = 8


class Layer(NamedTuple):
    """A recorded layer: its number in the model, its assignments, and its hottest expert's share of them."""

    number: int
    assignments: int
    hottest: int
    share: float
    imbalance: float
    never: int


class Spread(NamedTuple):
    """A histogram as a chart, and as rows of label and count."""

    title: str
    id: str
    chart: dict[str, Any]
    rows: list[tuple[str, int]]


E = TypeVar("E", bound=Entry)


def with_uses(entries: QuerySet[E]) -> QuerySet[Any]:
    """``entries``, each with ``num_uses``: how many experiments name it, but for deleted ones."""
    return entries.annotate(num_uses=Count("experiments", filter=Q(experiments__deleted_at=None)))


def library(trace_form: TraceForm | None = None, recording_form: RecordingForm | None = None) -> dict[str, Any]:
    """All entries, and the forms that bring in more."""
    return {
        "entries": with_uses(Trace.objects.described()).order_by("name"),
        "recordings": with_uses(Recording.objects.described()).order_by("name"),
        "built_in": [(name, generator.source) for name, generator in GENERATORS.items()],
        "trace_form": trace_form or TraceForm(),
        "recording_form": recording_form or RecordingForm(),
    }


def trace(entry: Trace) -> dict[str, Any]:
    shape = entry.shape
    spreads = [
        Spread(f"{what.capitalize()} lengths", what, charts.length_bars(shape[what], what), rows)
        for what in ("prompt", "output")
        for rows in [_rows(charts.length_labels(shape[what]), shape[what]["counts"])]
    ]
    arrivals = shape["arrivals"]
    if arrivals["width_s"]:
        rows = _rows(charts.slot_labels(arrivals), arrivals["counts"])
        spreads.append(Spread("Arrivals", "arrivals", charts.arrival_bars(arrivals), rows))
    lengths = [
        ("Prompt tokens", entry.total_prompt_tokens / entry.num_requests, entry.prompt_quantiles),
        ("Output tokens", entry.total_output_tokens / entry.num_requests, entry.output_quantiles),
    ]
    rate = entry.num_requests / entry.span_s if entry.span_s else None
    return {
        "trace": entry,
        "spreads": spreads,
        "lengths": lengths,
        "span": charts.slot(entry.span_s),
        "rate": rate,
        **_uses(entry),
    }


def recording(entry: Recording) -> dict[str, Any]:
    counts = entry.count_table
    total = counts.sum(axis=1)
    layers = [
        Layer(*figures)
        for figures in zip(
            entry.layers, total.tolist(), counts.argmax(axis=1).tolist(), (counts.max(axis=1) / total).tolist(),
            entry.imbalance, (counts == 0).sum(axis=1).tolist(), strict=True,
        )
    ]  # fmt: skip
    return {
        "recording": entry,
        "layers": layers,
        "map": heat.map_of(counts, "layer", len(layers), 1, entry.name),
        "heat_levels": heat.LEVELS,
        "chart": charts.imbalance_bars(entry.layers, entry.imbalance),
        "most": max(entry.imbalance),
        "least": min(entry.imbalance),
        "assignments": float(np.sum(total, dtype=float)),
        "models": recording_store.models_for(entry),
        **_uses(entry),
    }


def _rows(labels: list[str], counts: list[int]) -> list[tuple[str, int]]:
    return list(zip(labels, counts, strict=True))


def _uses(entry: Trace | Recording) -> dict[str, Any]:
    """The latest experiments that name it, how many there are, and how many that were deleted can still come back."""
    numbers = entry.experiments.aggregate(visible=Count("pk", filter=Q(deleted_at=None)), all=Count("pk"))
    return {
        "uses": entry.experiments.visible().listed().order_by("-queued_at")[:RECENT],
        "num_uses": numbers["visible"],
        "num_deleted": numbers["all"] - numbers["visible"],
    }
