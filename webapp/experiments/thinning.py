"""Taking the step samples of an experiment away, so that its summaries remain. Which experiments, and when, is for
`webapp.history.retention` to say.

Everything that lists and histories show comes from summaries (`Run.summary`), which stay as they are.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from django.db import transaction
from django.db.models import Count, Func, IntegerField, QuerySet, Sum

from webapp.experiments.models import Experiment, StageSeries


class Thinned(ValueError):
    """What was asked for needs steps that were thinned: one sentence for the reader."""


class Size(NamedTuple):
    """Of step samples: ``num_bytes`` as Postgres stores them, compressed."""

    experiments: int = 0
    runs: int = 0
    num_bytes: int = 0

    def __add__(self, other: Size) -> Size:  # type: ignore[override]
        return Size(*(one + two for one, two in zip(self, other, strict=True)))


def size_of(rows: QuerySet[Experiment]) -> Size:
    """What thinning ``rows`` would take away."""
    stored = Func("values", function="pg_column_size", output_field=IntegerField())
    found = StageSeries.objects.filter(run__experiment__in=rows.order_by().values("pk")).aggregate(
        runs=Count("run", distinct=True), num_bytes=Sum(stored)
    )
    return Size(rows.count(), found["runs"], found["num_bytes"] or 0)


def thin(rows: QuerySet[Experiment], most: int, now: datetime) -> Size:
    """Take the step samples of the ``most`` oldest of ``rows`` away; what that was. Two at once never take the same."""
    with transaction.atomic():
        locked = rows.filter(thinned_at=None).order_by("finished_at").select_for_update(skip_locked=True)
        chosen = Experiment.objects.filter(pk__in=[row.pk for row in locked.only("pk")[:most]])
        size = size_of(chosen)
        StageSeries.objects.filter(run__experiment__in=chosen).delete()
        chosen.update(thinned_at=now)
    return size


def in_words(row: Experiment) -> str:
    """What there is to say about it: one sentence, empty where every step is there."""
    if row.thinned_at is None:
        return ""
    return (
        f"Step samples were thinned on {row.thinned_at:%Y-%m-%d}: medians, percentiles, stages, requests and routing "
        "remain, single steps don't."
    )
