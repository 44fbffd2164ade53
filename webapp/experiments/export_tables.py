"""The numbers of an experiment's page as flat tables (pure). Names of columns end in their unit; a share is of 1.

Nothing is rounded: written by `webapp.ui.formatting`, the numbers are those on the page.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench_worker.result import Scale
from webapp.experiments.present import LATENCIES, SEEN, Seen, latencies, seen, stage_rows

__all__ = ["READ", "TABLES", "as_csv", "as_json", "tables"]

#: What `tables` reads of a run.
READ = (*SEEN, "check_result", "clock", "scale")

Row = dict[str, Any]


class _Of(NamedTuple):
    """A run as it is stored, and as the page shows it."""

    stored: Mapping[str, Any]
    shown: Seen

    @property
    def name(self) -> Row:
        return {"variant": self.shown.variant, "corner": self.shown.condition}


def tables(plan: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Row]]:
    """Rows by the names of `TABLES`. ``runs``: what `READ` names of each, in the order of the result."""
    pairs = [_Of(stored, shown) for stored, shown in zip(runs, seen(plan, runs), strict=True)]
    return {name: [row for pair in pairs for row in make(pair)] for name, (_, make) in TABLES.items()}


def as_json(title: str, number: int, found: Mapping[str, list[Row]]) -> bytes:
    """All tables in one document; every row by its columns' names."""
    document = {"experiment": number, "title": title, "tables": found}
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False).encode()


def as_csv(name: str, rows: Sequence[Row]) -> bytes:
    """One of the `TABLES`."""
    return written(TABLES[name][0], rows)


def written(columns: Sequence[str], rows: Sequence[Row]) -> bytes:
    """CSV (RFC 4180, but for the line ends) with ``columns`` in the first line; what is missing is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _run(run: _Of) -> Iterator[Row]:
    check, clock, summary, noise = (
        run.stored["check_result"],
        run.stored["clock"] or {},
        run.shown.summary,
        run.shown.noise,
    )
    row = run.name | {
        "status": run.shown.status,
        "error": check["rel_error"],
        "allowed_error": check["tolerance"],
        "quantization_error": check.get("quantization_error"),
        "stages_over_whole_layer": clock.get("sum_over_whole"),
    }
    if summary is not None:
        row |= {
            "step_p50_us": summary.step_us.p50,
            "step_p90_us": summary.step_us.p90,
            "step_p99_us": summary.step_us.p99,
            "steps": summary.step_us.samples,
            "step_origin": run.stored["origins"].get("step_us"),
            "is_truncated": summary.truncated,
            "expert_load_max_over_mean": summary.expert_imbalance,
            "rank_load_max_over_mean": summary.imbalance,
            "dropped_share": summary.drop_rate,
            "padding_share": summary.padding_waste,
            "output_tokens_per_s": summary.output_tokens_per_s,
            "requests_per_s": summary.requests_per_s,
            "goodput_per_s": summary.goodput_per_s,
        }
    if noise is not None:
        row |= {"noise": noise.label, "spread_share": noise.spread, "drift_share": noise.drift}
        if (around := noise.around) is not None:
            row |= {
                "memory_bus_gb_per_s": around.memory.median,
                "matrix_gflop_per_s": around.matrix and around.matrix.median,
            }
    yield row


def _stages(run: _Of) -> Iterator[Row]:
    summary = run.shown.summary
    if summary is not None:
        yield run.name | {"stage": "step", "mean_ms": summary.step_us.mean / 1000}
    for stage, ms in run.shown.stages_ms.items():
        assert summary is not None
        yield run.name | {"stage": stage, "mean_ms": ms, "share": summary.stage_share[stage]}


def _layer(run: _Of) -> Iterator[Row]:
    summary = run.shown.summary
    for stage in stage_rows(summary, Scale.model_validate(run.stored["scale"])) if summary else ():
        assert summary is not None
        limit = summary.limits.get(stage.name)
        yield run.name | {
            "stage": stage.name,
            "median_us": stage.us,
            "times_in_the_model": stage.held,
            "step_share": stage.share,
            "floor_us": limit and limit.floor_us,
            "floor_share": limit and limit.share,
            "bound_by": limit and limit.bound,
        }


def _latencies(run: _Of) -> Iterator[Row]:
    for name, found in latencies(run.shown.summary) if run.shown.summary else ():
        if found is not None:
            percentiles = {f"{key}_ms": getattr(found, key) for key in ("p50", "p90", "p95", "p99", "mean")}
            yield run.name | {"latency": LATENCIES[name].removesuffix("_ms")} | percentiles | {"samples": found.samples}


#: By name: the columns, and the rows of one run.
TABLES: dict[str, tuple[tuple[str, ...], Callable[[_Of], Iterator[Row]]]] = {
    "runs": (
        (
            "variant", "corner", "status", "error", "allowed_error", "quantization_error", "stages_over_whole_layer",
            "step_p50_us", "step_p90_us", "step_p99_us", "steps", "step_origin", "is_truncated",
            "expert_load_max_over_mean", "rank_load_max_over_mean", "dropped_share", "padding_share",
            "output_tokens_per_s", "requests_per_s", "goodput_per_s", "noise", "spread_share", "drift_share",
            "memory_bus_gb_per_s", "matrix_gflop_per_s",
        ),
        _run,
    ),
    "stages": (("variant", "corner", "stage", "mean_ms", "share"), _stages),
    "layer": (
        (
            "variant", "corner", "stage", "median_us", "times_in_the_model", "step_share", "floor_us", "floor_share",
            "bound_by",
        ),
        _layer,
    ),
    "latencies": (
        ("variant", "corner", "latency", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "mean_ms", "samples"),
        _latencies,
    ),
}  # fmt: skip
