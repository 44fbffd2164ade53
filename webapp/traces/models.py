"""What the team shares: request traces and recordings of expert load, named once, stored whole, found again by content.

An entry never changes. Its bulk lies in one column of bytes, which lists and forms leave alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Length
from django.db.models.lookups import Exact
from django.urls import reverse

from bench_worker.workload import Request
from bench_worker.workload import recordings as loads

#: One request, as `Trace.packed` holds it: 16 bytes.
RECORD = np.dtype([("arrival_s", "<f8"), ("prompt_tokens", "<i4"), ("output_tokens", "<i4")])
#: Python's own numbers take many times the memory.
_AT_A_TIME = 10_000
#: One count, as `Recording.counts` holds it.
COUNT = np.dtype("<i8")


class Entry(models.Model):
    """What traces and recordings have in common."""

    name = models.SlugField(max_length=100, unique=True)
    content_hash = models.CharField(max_length=64, unique=True, help_text="SHA-256, in hex, of what is replayed.")
    source_file = models.CharField(max_length=255)
    created = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True)

    class Meta:
        abstract = True
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class TraceQuerySet(models.QuerySet["Trace"]):
    def described(self) -> TraceQuerySet:
        """Entries without their requests: what lists and forms need."""
        return self.defer("packed", "shape").select_related("created_by")


class Trace(Entry):
    """Requests in order of arrival."""

    format = models.CharField(max_length=40)
    num_requests = models.PositiveIntegerField()
    span_s = models.FloatField(help_text="From the first arrival to the last.")
    total_prompt_tokens = models.PositiveBigIntegerField()
    total_output_tokens = models.PositiveBigIntegerField()
    prompt_quantiles = models.JSONField(help_text="p50, p90, p99 and max of the prompt lengths.")
    output_quantiles = models.JSONField(help_text="p50, p90, p99 and max of the answer lengths.")
    shape = models.JSONField(help_text="Histograms of lengths and arrivals; see `shape`.")
    packed = models.BinaryField(help_text="One `RECORD` a request.")

    objects = TraceQuerySet.as_manager()

    class Meta(Entry.Meta):
        constraints = (
            models.CheckConstraint(
                name="trace_holds_as_many_requests_as_it_says",
                condition=models.Q(Exact(Length("packed"), models.F("num_requests") * RECORD.itemsize)),
            ),
        )

    def get_absolute_url(self) -> str:
        return reverse("traces:trace", args=[self.name])

    def requests(self) -> Iterator[Request]:
        """The requests in order of arrival, exactly as they were read."""
        records = np.frombuffer(self.packed, RECORD)
        for start in range(0, len(records), _AT_A_TIME):
            yield from map(Request._make, records[start : start + _AT_A_TIME].tolist())


class RecordingQuerySet(models.QuerySet["Recording"]):
    def described(self) -> RecordingQuerySet:
        """Entries without what is replayed: what lists and forms need."""
        return self.defer("content", "counts").select_related("created_by")


class Recording(Entry):
    """An expert load; ``L`` recorded layers of ``E`` experts."""

    layers = ArrayField(models.BigIntegerField(), help_text="Numbers [L] of the layers in their model.")
    num_experts = models.PositiveIntegerField()
    top_k = models.PositiveIntegerField(null=True, help_text="Experts a token; null where the file doesn't say.")
    num_tokens = models.PositiveBigIntegerField(null=True, help_text="Null where only counts were recorded.")
    num_sequences = models.PositiveIntegerField(null=True)
    dropped_rows = models.PositiveBigIntegerField(help_text="Rows of a profiling pass that were left out.")
    imbalance = ArrayField(models.FloatField(), help_text="Maximum over mean [L] of each layer's counts.")
    counts = models.BinaryField(help_text="Assignments by layer and expert, `COUNT` [L, E].")
    content = models.BinaryField(help_text="The compact .npz file that the measuring program reads.")

    objects = RecordingQuerySet.as_manager()

    def get_absolute_url(self) -> str:
        return reverse("traces:recording", args=[self.name])

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def summary(self) -> str:
        """``3 layers of 64 experts``, and how it was recorded."""
        layers = f"{self.num_layers:,} layer{'s' if self.num_layers > 1 else ''} of {self.num_experts:,} experts"
        return f"{layers}, counted" if self.num_tokens is None else f"{layers}, {self.num_tokens:,} tokens one by one"

    @property
    def count_table(self) -> np.ndarray:
        """``counts`` as int64 [L, E]."""
        return np.frombuffer(self.counts, COUNT).reshape(len(self.layers), self.num_experts)

    def load(self) -> loads.Recording:
        """The counted load: all that decides which models it fits."""
        return loads.from_counts(self.count_table, self.top_k, np.array(self.layers), self.name)
