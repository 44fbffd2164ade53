"""What the ranks of a run read from the database; `ranks` makes of it what is shown."""

from __future__ import annotations

from django.db.models import Prefetch, Q

from bench_worker.result import Exchange, Steps, Summary
from bench_worker.spec import Spec
from webapp.experiments import ranks
from webapp.experiments.models import Run, StageSeries


def first_rank() -> Prefetch:
    """A run's series without those of its other ranks, of which there may be hundreds."""
    return Prefetch("series", StageSeries.objects.filter(Q(rank=None) | Q(rank=0)))


def of_run(run: Run, summary: Summary, steps: Steps, step: str) -> ranks.Ranks | None:
    """The ranks of ``run``: some columns of all steps, and every stage of the ``step`` that is asked for by its number.
    None where one rank ran; its exchange, which grows with ranks and experts, is read for no other run."""
    if run.spec["parallel"]["mode"] == "single":
        return None
    exchange = Exchange.model_validate(run.exchange)
    series = StageSeries.objects.filter(run=run, rank__isnull=False)
    whole: dict[str, dict[int, list[float]]] = {name: {} for name in ranks.WHOLE}
    for column in series.filter(stage__in=ranks.WHOLE):
        assert column.rank is not None
        whole[column.stage][column.rank] = column.values
    layers = run.scale["executed_layers"]
    columns = ranks.columns(steps.index, _span_us(steps, layers), whole, len(exchange.nodes))
    place = ranks.step_place(columns, step)
    stages: dict[str, dict[int, float]] = {}
    for stage, rank, us in series.exclude(stage__in=ranks.WHOLE).values_list("stage", "rank", f"values__{place}"):
        stages.setdefault(stage, {})[rank] = us / (layers if stage == ranks.OTHER else 1)
    found = {stage: [times[rank] for rank in range(len(exchange.nodes))] for stage, times in stages.items()}
    return ranks.section(Spec.model_validate(run.spec), summary, exchange, columns, place, found)


def _span_us(steps: Steps, layers: int) -> list[float]:
    """From the first rank's start of a layer to the last one's end, by step: what the first rank does and waits then,
    with one of ``layers`` parts of what is done once a step."""
    first = steps.ranks[0]
    parts = [
        [us / (layers if stage == ranks.OTHER else 1) for us in times]
        for stage, times in first.stages_us.items()
        if stage in ranks.STAGES
    ]
    return [sum(part) for part in zip(first.idle_us, *parts, strict=True)]
