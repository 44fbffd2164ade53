"""What the clients of a run saw: latencies, throughput and goodput of all its passes, and its KV cache. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, get_args

import numpy as np

from bench_worker.result import TailSteps
from bench_worker.serving import LatencyLimits, RequestMetrics, Timeline, output_tokens, request_metrics, span_s
from bench_worker.spec import Spec
from bench_worker.stats import distribution
from bench_worker.tail import Metric, tail
from bench_worker.workload.schedule import Batch

__all__ = ["NOTHING", "Pass", "Served", "figures", "goodput_notes", "serve", "workload_notes"]


class Pass(NamedTuple):
    """One pass over the schedule, as far as it came. In open loop, when each step began and when each of the scheduled
    requests was meant to arrive, in µs."""

    batches: list[Batch]
    start_us: list[float] | None = None
    arrival_us: np.ndarray | None = None


class Served(NamedTuple):
    """The finished requests of all passes, and the passes with their times."""

    metrics: list[RequestMetrics]
    timelines: list[Timeline]

    def per_s(self, count: float) -> float | None:
        """``count`` of what happened in all passes, a second; None where there are no times."""
        return count / sum(map(span_s, self.timelines)) if self.timelines else None


#: Where requests have no latencies, because attention was not measured.
NOTHING = Served([], [])


def serve(passes: Sequence[Pass], step_us: np.ndarray) -> Served:
    """``step_us`` [S]: whole-model times of the steps of all passes, one after the other."""
    timelines, start = [], 0
    for batches, start_us, arrival_us in passes:
        if batches:
            timelines.append(Timeline(batches, step_us[start : start + len(batches)], start_us, arrival_us))
        start += len(batches)
    return Served([one for timeline in timelines for one in request_metrics(*timeline)], timelines)


def figures(spec: Spec, passes: Sequence[Pass], seen: Served) -> dict[str, Any]:
    """The fields of `bench_worker.result.Summary` that speak of requests."""
    batches, limits = _batches(passes), _limits(spec)
    metrics = seen.metrics
    return {
        "ttft_ms": distribution([m.ttft_ms for m in metrics]),
        "tpot_ms": distribution([m.tpot_ms for m in metrics if m.tpot_ms is not None]),
        "itl_ms": distribution([gap for m in metrics for gap in m.itl_ms]),
        "e2e_ms": distribution([m.e2e_ms for m in metrics]),
        "output_tokens_per_s": seen.per_s(output_tokens(batches)),
        "requests_per_s": seen.per_s(len(metrics)),
        "goodput_per_s": seen.per_s(sum(map(limits.met_by, metrics))) if any(limits) else None,
        "tails": {
            metric: TailSteps(**asdict(found))
            for metric in get_args(Metric)
            if (found := tail(metric, seen.timelines)) is not None
        },
        "preemptions": sum(len(batch.preempted) for batch in batches),
        "recomputed_tokens": sum(batch.recomputed_tokens for batch in batches),
        "prefix_hit_rate": _hit_rate(batches) if spec.workload.prefix_reuse else None,
        "rounds": len(passes) if spec.workload.arrivals != "closed" else None,
    }


def workload_notes(spec: Spec, passes: Sequence[Pass]) -> list[str]:
    """What a reader must know about how requests arrived and shared the KV cache, one sentence each."""
    work, batches = spec.workload, _batches(passes)
    if not batches:
        return []
    found = []
    if work.arrivals != "closed":
        found.append(
            "Open loop: a variant's schedule depends on its own speed, so variants alternated in whole rounds "
            f"({len(passes)} of each) and drift of the machine doesn't cancel. The clock is virtual, driven by the "
            "step times."
        )
    if work.kv_tokens is not None:
        preempted = sum(len(batch.preempted) for batch in batches)
        again = sum(batch.recomputed_tokens for batch in batches)
        found.append(
            f"The KV cache held {work.kv_tokens:,} tokens: preempted {preempted:,} times, "
            f"{again:,} tokens computed again."
        )
    if work.prefix_reuse:
        found.append(
            f"Prefixes were reused: {_hit_rate(batches):.1%} of the prompts' tokens were found in the KV cache. Each "
            "request still reads a copy of its own."
        )
    return found


def goodput_notes(spec: Spec, seen: Served) -> list[str]:
    """Says so where no request met the limits, and how near the best came to each."""
    limits = _limits(spec)
    if not seen.metrics or not any(limits) or any(map(limits.met_by, seen.metrics)):
        return []
    best = []
    for name, limit in limits._asdict().items():
        values = [value for one in seen.metrics if (value := getattr(one, name)) is not None]
        if limit is not None and values:
            best.append(f"{name.removesuffix('_ms').upper()} {_ms(min(values))} against {_ms(limit)} ms")
    return [f"Goodput is 0: no request met all limits. Each by itself, the best were {', '.join(best)}."]


def _ms(value: float) -> str:
    return f"{value:,.1f}" if value >= 1 else f"{value:.2g}"


def _limits(spec: Spec) -> LatencyLimits:
    return LatencyLimits(**spec.workload.limits.model_dump())


def _batches(passes: Sequence[Pass]) -> list[Batch]:
    return [batch for one in passes for batch in one.batches]


def _hit_rate(batches: Sequence[Batch]) -> float:
    """Tokens found / (found + computed), of prompts."""
    reused = sum(batch.reused_tokens for batch in batches)
    return reused / (reused + sum(batch.prefill_tokens for batch in batches)) if reused else 0.0
