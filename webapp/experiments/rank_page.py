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


def of_run(run: Run, summary: Summary, steps: Steps, step: str) -> ranks.Ranks:
    """The ranks of ``run``, which has an exchange: some columns of all steps, and every stage of the ``step`` that is
    asked for by its number."""
    exchange = Exchange.model_validate(run.exchange)
    series = StageSeries.objects.filter(run=run, rank__isnull=False)
    whole: dict[str, dict[int, list[float]]] = {name: {} for name in ranks.WHOLE}
    for column in series.filter(stage__in=ranks.WHOLE):
        assert column.rank is not None
        whole[column.stage][column.rank] = column.values
    columns = ranks.columns(steps.index, _span_us(steps), whole, len(exchange.nodes))
    place = ranks.step_place(columns, step)
    stages: dict[str, dict[int, float]] = {}
    for stage, rank, us in series.exclude(stage__in=ranks.WHOLE).values_list("stage", "rank", f"values__{place}"):
        stages.setdefault(stage, {})[rank] = us
    found = {stage: [times[rank] for rank in range(len(exchange.nodes))] for stage, times in stages.items()}
    return ranks.section(Spec.model_validate(run.spec), summary, exchange, columns, place, found)


def _span_us(steps: Steps) -> list[float]:
    """From the first rank's start of a layer, and of the attention before it, to the last one's end: on every rank its
    stages and what it waits, so also on the first."""
    first = steps.ranks[0]
    parts = [times for stage, times in first.stages_us.items() if stage in ranks.STAGES]
    return [sum(part) for part in zip(first.idle_us, *parts, strict=True)]
