"""Finding runs to compare: filters in the address, and ticks that stay while one looks for more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import django_filters
from django import forms
from django.core.paginator import Paginator
from django.db.models import QuerySet

from bench_worker import models
from bench_worker.strategies import STRATEGIES
from webapp.accounts.models import User
from webapp.experiments.filters import holding_words, tags
from webapp.experiments.models import Machine, Run, State

PER_PAGE = 25


class RunFilter(django_filters.FilterSet):
    """Words, model, strategy, tag, machine and author."""

    q = django_filters.CharFilter(
        label="Search", method="with_words", widget=forms.SearchInput(attrs={"placeholder": "title, variant or corner"})
    )
    model = django_filters.ChoiceFilter(
        label="Model", choices=lambda: [(name, name) for name in models.presets()], field_name="spec__model",
        empty_label="any",
    )  # fmt: skip
    strategy = django_filters.ChoiceFilter(
        label="Strategy", choices=lambda: [(name, name) for name in STRATEGIES], field_name="spec__routing__strategy",
        empty_label="any",
    )  # fmt: skip
    tag = django_filters.ChoiceFilter(
        label="Tag", choices=lambda: [(tag, tag) for tag in tags()], method="tagged", empty_label="any"
    )
    machine = django_filters.ChoiceFilter(
        label="Machine", choices=lambda: machines(), field_name="experiment__machine__name", empty_label="any"
    )
    author = django_filters.ModelChoiceFilter(
        label="By", queryset=User.objects.order_by("username"), to_field_name="username",
        field_name="experiment__author", empty_label="anyone",
    )  # fmt: skip

    class Meta:
        model = Run
        fields: list[str] = []

    def tagged(self, rows: QuerySet[Run], name: str, tag: str) -> QuerySet[Run]:
        return rows.filter(experiment__tags__contains=[tag])

    def with_words(self, rows: QuerySet[Run], name: str, text: str) -> QuerySet[Run]:
        """All of the words, anywhere; a number also finds the runs of the experiment with that number."""
        return rows.filter(holding_words(text, ("experiment__title", "variant", "condition"), "experiment"))


def machines() -> list[tuple[str, str]]:
    """Every kind of machine that measured anything."""
    names = Machine.objects.order_by("name").values_list("name", flat=True).distinct()
    return [(name, name) for name in names]


def runs() -> QuerySet[Run]:
    """What can be compared, latest experiment first, with as much of each as a list shows."""
    shown = ("variant", "condition", "summary__step_us__p50", "experiment_id", "experiment__title", "spec__model",
             "spec__routing__strategy", "experiment__tags", "experiment__machine__name", "experiment__author__username",
             "experiment__finished_at", "pk")  # fmt: skip
    timed = Run.objects.filter(
        experiment__deleted_at=None, experiment__state=State.DONE, summary__isnull=False
    ).order_by("-experiment_id", "position")
    return timed.values(*shown)


def found(query: Any, picked: Sequence[int], number: str) -> dict[str, Any]:
    """The runs that pass the filters of ``query``, and apart from them those that are ``picked``; ``number`` of the
    page."""
    everything = runs()
    chosen = RunFilter(query, queryset=everything.exclude(pk__in=picked))
    passing = chosen.qs if chosen.is_valid() else everything.none()
    return {
        "filter": chosen,
        "is_filtered": any(query.get(name) for name in chosen.filters),
        "rows": Paginator(passing, PER_PAGE).get_page(number),
        "picked": list(everything.filter(pk__in=picked)),
    }
