"""Is a model that is scaled from a few of its layers as fast as all of it? See docs/serving.md."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from bench_worker import models
from bench_worker.result import Distribution
from bench_worker.spec import Experiment, Library
from tools.bench import apart

MODEL, SCALED_FROM = "olmoe-1b-7b", 2
#: Azure's conversations of 2023 where they are at hand; else the built-in trace that has their lengths.
AZURE = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "requests" / "azure_llm_2023_conv.csv"
REQUESTS, CONCURRENCY = 16, 8
#: How far apart the two may be.
WITHIN = 0.10


def section() -> None:
    compare(MODEL, SCALED_FROM, {"requests": REQUESTS, "concurrency": CONCURRENCY, "trace": _trace()})


def compare(model: str, scaled_from: int, workload: dict[str, Any]) -> None:
    """The whole model between two runs of ``scaled_from`` layers: what these differ by is the machine's doing."""
    layers = models.load(model, allow_paths=True).moe_layers
    experiments = {count: _experiment(model, count, workload) for count in (scaled_from, layers)}
    asked = experiments[layers].base.workload
    print(f"{Path(model).stem}, bfloat16, {asked.requests} requests of {Path(asked.trace).stem}, "
          f"{asked.concurrency} at once; whole-model times")  # fmt: skip
    needed, free = apart.predicted_bytes(experiments[layers]), psutil.virtual_memory().available
    if needed > free:
        print(f"all {layers} layers need {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free")
        return
    print(f"{'layers':>8}{'TPOT ms, mean':>15}{'p50':>10}{'p95':>10}{'requests':>10}{'peak GB':>10}{'seconds':>9}")
    tpot_ms: dict[int, list[float]] = {scaled_from: [], layers: []}
    for count in (scaled_from, layers, scaled_from):
        try:
            tpot_ms[count].append(_measured(count, experiments[count]).mean)
        except apart.Failed as failed:
            print(f"{count:>8}  {failed}")
            return
    scaled = tpot_ms[scaled_from]
    ratio = fmean(tpot_ms[layers]) / fmean(scaled)
    print(f"all {layers} layers / scaled from {scaled_from}: {ratio:.3f} (TPOT, mean)"
          f"{'' if abs(ratio - 1) <= WITHIN else f' ! not within {WITHIN:.0%}'}; "
          f"the second scaled run / the first: {scaled[1] / scaled[0]:.3f}")  # fmt: skip


def _measured(layers: int, experiment: Experiment) -> Distribution:
    """Prints a row. Raises `apart.Failed`."""
    found = apart.measure(experiment)
    summary = found.result.runs[0].summary
    if summary is None or summary.tpot_ms is None:
        raise apart.Failed(f"no request has a TPOT: {found.result.runs[0].status}")
    tpot = summary.tpot_ms
    print(
        f"{layers:>8}{tpot.mean:>15.1f}{tpot.p50:>10.1f}{tpot.p95:>10.1f}{tpot.samples:>10}"
        f"{found.peak_bytes / 1e9:>10.2f}{found.seconds:>9.0f}{'  truncated' if summary.truncated else ''}"
    )
    return tpot


def _experiment(model: str, layers: int, workload: dict[str, Any]) -> Experiment:
    base = {"model": model, "layers": layers, "workload": workload}
    document = {"base": base, "measure": {"max_seconds": 3600}}
    return Experiment.model_validate(document, context=Library(allow_paths=True))


def _trace() -> str:
    return str(AZURE) if AZURE.is_file() else "conversation"
