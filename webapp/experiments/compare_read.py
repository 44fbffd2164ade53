"""From an address to the runs that it names: four queries, however many runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from django.db.models import Q, QuerySet

from bench_worker.ceilings import Ceilings
from bench_worker.findings import Verdict
from bench_worker.result import LAYER_STAGES, STAGES, Noise, Scale, Summary
from bench_worker.scaling import top
from bench_worker.spec import Spec
from webapp.experiments.compare import BATCH, METRICS, STEP, Measured
from webapp.experiments.models import Experiment, Run, StageSeries, State
from webapp.numbers import number_in

#: Runs that one page compares at most.
MOST = 100
#: What is read of a run. Of its requests, never the gaps between tokens, of which there may be millions.
READ = (
    "pk", "experiment_id", "variant", "condition", "position", "spec", "summary", "scale", "origins", "noise",
    "experiment__thinned_at", "fit__deployment", "routing__expert_overlap",
    *(f"requests__{metric}" for metric in METRICS),
)  # fmt: skip
#: What is read of an experiment, once for all of its runs.
OF_EXPERIMENT = (
    "pk", "title", "machine__host", "result__environment", "result__ceilings", "result__verdict__runs",
)  # fmt: skip
#: How long a rank waited, as the runs' columns call it.
IDLE = "idle_us"


class Refused(ValueError):
    """What was asked for can't be compared: one sentence for the reader."""


def parse(texts: Iterable[str]) -> list[int]:
    """Numbers of runs, each once, in order: from ``3,5``, ``3-9``, or several of such. Raises `Refused`."""
    numbers: dict[int, None] = {}
    for text in ",".join(texts).split(","):
        first, dash, last = text.partition("-")
        low = number_in(first)
        high = number_in(last) if dash else low
        if low is None or high is None:
            if not text.strip():
                continue
            raise Refused(f"runs: {text.strip()[:40]!r} is not the number of a run; give numbers as in 3,5 or 3-9.")
        count = len(numbers) + max(high - low + 1, 0)
        if count > MOST:
            raise Refused(f"runs: {count:,} runs are too many; at most {MOST} can be compared at once.")
        numbers.update(dict.fromkeys(range(low, high + 1)))
    return list(numbers)


def written(numbers: Sequence[int]) -> str:
    """The shortest text that `parse` reads as these numbers: ``3-9,12``."""
    stretches: list[list[int]] = []
    for number in numbers:
        if stretches and number == stretches[-1][-1] + 1:
            stretches[-1].append(number)
        else:
            stretches.append([number])
    parts = [f"{s[0]}-{s[-1]}" if len(s) > 2 else ",".join(map(str, s)) for s in stretches]
    return ",".join(parts)


def measured(numbers: Sequence[int]) -> list[Measured]:
    """The runs with these numbers, in their order. Raises `Refused` for any that can't be compared."""
    if len(numbers) < 2:
        what = f"run {numbers[0]} is only one" if numbers else "none is chosen"
        raise Refused(f"runs: {what}; a comparison takes two or more.")
    found = {row["pk"]: row for row in _visible().filter(pk__in=numbers).values(*READ)}
    if lost := [number for number in numbers if number not in found]:
        raise Refused(f"runs: {_listed(lost)} no finished {'run' if len(lost) == 1 else 'runs'}.")
    if untimed := [number for number in numbers if found[number]["summary"] is None]:
        raise Refused(f"runs: {_listed(untimed)} without times: the output was wrong, or no step was measured.")
    if thinned := [number for number in numbers if found[number]["experiment__thinned_at"]]:
        when = found[thinned[0]]["experiment__thinned_at"]
        raise Refused(
            f"runs: {_listed(thinned)} without step samples, which a comparison takes: they were thinned on "
            f"{when:%Y-%m-%d}, and medians and percentiles remain on the {'page' if len(thinned) == 1 else 'pages'} of "
            f"the {'run' if len(thinned) == 1 else 'runs'}."
        )
    rows = [found[number] for number in numbers]
    beside = Run.objects.filter(experiment__in={row["experiment_id"] for row in rows}, summary__isnull=False)
    return _with_series(rows, Counter(beside.values_list("experiment_id", "condition")))


def of_experiment(experiment: int) -> list[Measured]:
    """The timed runs of an experiment, in the order of its plan, by whole steps alone."""
    rows = Run.objects.filter(experiment=experiment, summary__isnull=False).order_by("position").values(*READ)
    beside = Counter((row["experiment_id"], row["condition"]) for row in rows)
    return _with_series(rows, beside, stages=False)


def _with_series(
    rows: Iterable[Mapping[str, Any]], beside: Mapping[tuple[int, str], int], stages: bool = True
) -> list[Measured]:
    """``rows`` of runs with `READ`, with what each step took; without its ``stages``, as a whole alone. ``beside``: how
    many timed runs each experiment has at each condition."""
    scales = {row["pk"]: Scale.model_validate(row["scale"]) for row in rows}
    leaves = {leaf for scale in scales.values() for leaf in scale.counts}
    wanted = Q(rank=None, stage__in=("step_us", *BATCH))
    if stages:
        wanted |= Q(rank__isnull=False, stage__in=(*leaves, IDLE))
    series = StageSeries.objects.filter(wanted, run__in=scales).values_list("run_id", "rank", "stage", "values")
    columns: dict[int, dict[tuple[int | None, str], np.ndarray]] = {row["pk"]: {} for row in rows}
    for run, rank, stage, values in series:
        columns[run][rank, stage] = np.array(values)
    numbers = {row["experiment_id"] for row in rows}
    experiments = {one["pk"]: one for one in Experiment.objects.filter(pk__in=numbers).values(*OF_EXPERIMENT)}
    return [
        _measured(
            row,
            experiments[row["experiment_id"]],
            beside[row["experiment_id"], row["condition"]],
            scales[row["pk"]],
            columns[row["pk"]],
        )
        for row in rows
    ]


def _measured(
    row: Mapping[str, Any],
    experiment: Mapping[str, Any],
    interleaved: int,
    scale: Scale,
    columns: Mapping[tuple[int | None, str], np.ndarray],
) -> Measured:
    spec = Spec.model_validate(row["spec"])
    environment = experiment["result__environment"] or {}
    ceilings = (experiment["result__ceilings"] or {}).get(str(spec.kernels.threads or environment.get("threads")))
    verdict = (experiment["result__verdict__runs"] or {}).get(f"{row['variant']} at {row['condition']}")
    return Measured(
        id=row["pk"],
        experiment=row["experiment_id"],
        title=experiment["title"],
        variant=row["variant"],
        condition=row["condition"],
        position=row["position"],
        spec=spec,
        summary=Summary.model_validate(row["summary"]),
        layer_scale=_layers(scale) / scale.executed_layers,
        origin=row["origins"].get("step_us", ""),
        interleaved=interleaved,
        parts={STEP: columns[None, "step_us"], **_stages(scale, columns)},
        batches={name: columns[None, name] for name in BATCH},
        requests={metric: row[f"requests__{metric}"] or () for metric in METRICS},
        environment=environment,
        host=experiment["machine__host"] or "",
        noise=Noise.model_validate(row["noise"]) if row["noise"] else None,
        fit=row["fit__deployment"] or {},
        ceilings=Ceilings.model_validate(ceilings) if ceilings else None,
        overlap=row["routing__expert_overlap"],
        verdict=Verdict.model_validate(verdict) if verdict else None,
    )


def _stages(scale: Scale, columns: Mapping[tuple[int | None, str], np.ndarray]) -> dict[str, np.ndarray]:
    """Each stage's part of every whole-model step in µs: Σ count · time over its leaves, mean over the ranks; waiting
    counts once a layer."""
    ranks = {rank for rank, _ in columns if rank is not None}
    found: dict[str, np.ndarray] = {}
    for (rank, leaf), times in columns.items():
        if rank is not None and (leaf != IDLE or times.any()):
            stage, count = ("idle", _layers(scale)) if leaf == IDLE else (top(leaf), scale.counts[leaf])
            found[stage] = found.get(stage, 0.0) + count * times / len(ranks)
    return {stage: found[stage] for stage in STAGES if stage in found}


def _layers(scale: Scale) -> int:
    """MoE layers of the model."""
    return next(count for leaf, count in scale.counts.items() if top(leaf) in LAYER_STAGES)


def _visible() -> QuerySet[Run]:
    return Run.objects.filter(experiment__deleted_at=None, experiment__state=State.DONE)


def _listed(numbers: Sequence[int]) -> str:
    """``7 is``, ``7 and 9 are``, ``7, 9 and 4 more are``."""
    shown = [str(number) for number in numbers[:5]]
    if len(numbers) == 1:
        return f"{shown[0]} is"
    more = f"{len(numbers) - 5} more" if len(numbers) > 5 else shown.pop()
    return f"{', '.join(shown)} and {more} are"
