"""The traces room: what is there, and each entry as the plain CSV that the measuring program reads."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from bench_worker.workload.generators import GENERATORS
from bench_worker.workload.requests import PLAIN_HEADER
from webapp.traces.models import Trace


@require_safe
def trace_list(request: HttpRequest) -> HttpResponse:
    built_in = [(name, generator.source) for name, generator in GENERATORS.items()]
    return render(request, "traces/list.html", {"entries": Trace.objects.described(), "built_in": built_in})


@require_safe
def trace_csv(request: HttpRequest, name: str) -> StreamingHttpResponse:
    trace = get_object_or_404(Trace, name=name)
    response = StreamingHttpResponse(_lines(trace), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{trace.name}.csv"'
    return response


class _Echo:
    """What `csv.writer` writes, handed back instead of kept."""

    def write(self, line: str) -> str:
        return line


def _lines(trace: Trace) -> Iterator[str]:
    writer = csv.writer(_Echo(), lineterminator="\n")
    return (writer.writerow(row) for row in chain([PLAIN_HEADER], trace.requests()))
