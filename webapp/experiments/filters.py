"""The filters of the list, all of them in the page's address."""

from __future__ import annotations

from collections.abc import Sequence

import django_filters
from django import forms
from django.db.models import CharField, Func, Q, QuerySet

from bench_worker import models
from webapp.accounts.models import User
from webapp.experiments.models import HELD, Experiment, State
from webapp.numbers import number_in

DELETED = "deleted"
STATES = [
    (State.QUEUED, "queued"), (State.RUNNING, "running"), (State.DONE, "done"), (State.FAILED, "failed"),
    (State.CANCELED, "canceled"), (DELETED, "deleted"),
]  # fmt: skip


class ExperimentFilter(django_filters.FilterSet):
    """State, model, author, tag and words; the deleted ones appear only where they are asked for."""

    q = django_filters.CharFilter(
        label="Search", method="with_words", widget=forms.SearchInput(attrs={"placeholder": "title, notes or answer"})
    )
    state = django_filters.ChoiceFilter(label="State", choices=STATES, method="in_state", empty_label="any")
    model = django_filters.ChoiceFilter(
        label="Model",
        choices=lambda: [(name, name) for name in models.presets()],
        field_name="model_names",
        method="holding",
        empty_label="any",
    )
    author = django_filters.ModelChoiceFilter(
        label="By", queryset=User.objects.order_by("username"), to_field_name="username", empty_label="anyone"
    )
    tag = django_filters.ChoiceFilter(
        label="Tag",
        choices=lambda: [(tag, tag) for tag in tags()],
        field_name="tags",
        method="holding",
        empty_label="any",
    )

    class Meta:
        model = Experiment
        fields: list[str] = []

    def filter_queryset(self, queryset: QuerySet[Experiment]) -> QuerySet[Experiment]:
        deleted = self.form.cleaned_data.get("state") == DELETED
        return super().filter_queryset(queryset.filter(deleted_at__isnull=not deleted))

    def in_state(self, rows: QuerySet[Experiment], name: str, state: str) -> QuerySet[Experiment]:
        if state == DELETED:
            return rows
        return rows.filter(state__in=HELD if state == State.RUNNING else [state])

    def holding(self, rows: QuerySet[Experiment], name: str, value: str) -> QuerySet[Experiment]:
        return rows.filter(**{f"{name}__contains": [value]})

    def with_words(self, rows: QuerySet[Experiment], name: str, text: str) -> QuerySet[Experiment]:
        """All of the words, anywhere; a number also finds the experiment with that number."""
        return rows.filter(holding_words(text, ("title", "notes", "answer"), "pk"))


def holding_words(text: str, fields: Sequence[str], number: str) -> Q:
    """Rows that hold every word of ``text`` in one of their ``fields``; a word that is a number, also with a ``#``
    before it, may be that of the field ``number`` instead."""
    every = Q()
    for word in text.split():
        found = Q(*((f"{field}__icontains", word) for field in fields), _connector=Q.OR)
        if (own := number_in(word.removeprefix("#"))) is not None:
            found |= Q((number, own))
        every &= found
    return every


def tags() -> list[str]:
    """Every tag in use, in alphabetical order."""
    each = Func("tags", function="unnest", output_field=CharField())
    used = Experiment.objects.visible().exclude(tags=[]).annotate(tag=each).values_list("tag", flat=True)
    return list(used.order_by("tag").distinct())
