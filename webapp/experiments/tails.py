"""The latencies of a run whose p95 has steps behind it (pure)."""

from __future__ import annotations

from typing import NamedTuple

from bench_worker.result import Summary, TailSteps
from webapp.experiments.present import LATENCIES

__all__ = ["Tail", "tails"]


class Tail(NamedTuple):
    """What makes the p95 of a latency."""

    metric: str
    name: str
    found: TailSteps

    @property
    def short(self) -> str:
        """Its name in a table."""
        return self.metric.removesuffix("_ms").upper()


def tails(summary: Summary) -> list[Tail]:
    """In the order of the latencies; those that have a p95."""
    return [Tail(field, name, summary.tails[field]) for name, field in LATENCIES.items() if field in summary.tails]
