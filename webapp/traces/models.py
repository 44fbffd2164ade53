"""A request trace as the team shares it: named once, stored whole, found again by its content."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models

from bench_worker.workload import Request


class TraceQuerySet(models.QuerySet["Trace"]):
    def described(self) -> TraceQuerySet:
        """Entries without their arrays: what lists and forms need."""
        return self.defer("arrival_s", "prompt_tokens", "output_tokens").select_related("created_by")


class Trace(models.Model):
    """Requests in order of arrival; the three arrays have one element a request."""

    name = models.SlugField(max_length=100, unique=True)
    content_hash = models.CharField(max_length=64, unique=True, help_text="SHA-256 of the three arrays.")
    source_file = models.CharField(max_length=255)
    format = models.CharField(max_length=40)
    num_requests = models.PositiveIntegerField()
    total_prompt_tokens = models.PositiveBigIntegerField()
    total_output_tokens = models.PositiveBigIntegerField()
    prompt_quantiles = models.JSONField(help_text="p50, p90, p99 and max of the prompt lengths.")
    output_quantiles = models.JSONField(help_text="p50, p90, p99 and max of the answer lengths.")
    created = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True)

    arrival_s = ArrayField(models.FloatField())
    prompt_tokens = ArrayField(models.IntegerField())
    output_tokens = ArrayField(models.IntegerField())

    objects = TraceQuerySet.as_manager()

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                name="trace_arrays_have_one_element_a_request",
                condition=models.Q(arrival_s__len=models.F("num_requests"))
                & models.Q(prompt_tokens__len=models.F("num_requests"))
                & models.Q(output_tokens__len=models.F("num_requests")),
            ),
        )

    def __str__(self) -> str:
        return self.name

    def requests(self) -> Iterator[Request]:
        """The requests in order of arrival, exactly as they were read."""
        return starmap(Request, zip(self.arrival_s, self.prompt_tokens, self.output_tokens, strict=True))
