"""The room of what experiments replay: request traces, and recordings of expert load."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from django_htmx.http import HttpResponseClientRedirect

from bench_worker.workload.requests import PLAIN_HEADER
from webapp.accounts.roles import member
from webapp.limits import takes_up_to
from webapp.traces import deeds, page
from webapp.traces.models import Recording, Trace
from webapp.traces.uploads import MAX_RECORDING_BYTES, MAX_TRACE_BYTES, ImportForm, RecordingForm, TraceForm


@require_safe
def trace_list(request: HttpRequest) -> HttpResponse:
    return render(request, "traces/list.html", page.library())


@takes_up_to(MAX_TRACE_BYTES)
@require_http_methods(["GET", "HEAD", "POST"])
def new_trace(request: HttpRequest) -> HttpResponse:
    """Import a trace; its address alone shows the list."""
    return _new(request, "trace_form", TraceForm)


@takes_up_to(MAX_RECORDING_BYTES)
@require_http_methods(["GET", "HEAD", "POST"])
def new_recording(request: HttpRequest) -> HttpResponse:
    """Import a recording; its address alone shows the list."""
    return _new(request, "recording_form", RecordingForm)


@require_safe
def trace(request: HttpRequest, name: str) -> HttpResponse:
    entries = Trace.objects.defer("packed").select_related("created_by")
    return render(request, "traces/trace.html", page.trace(get_object_or_404(entries, name=name)))


@require_safe
def recording(request: HttpRequest, name: str) -> HttpResponse:
    entries = Recording.objects.defer("content").select_related("created_by")
    return render(request, "traces/recording.html", page.recording(get_object_or_404(entries, name=name)))


@require_safe
def trace_csv(request: HttpRequest, name: str) -> StreamingHttpResponse:
    """The entry as the plain CSV that the measuring program reads."""
    entry = get_object_or_404(Trace, name=name)
    response = StreamingHttpResponse(_lines(entry), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{entry.name}.csv"'
    return response


@require_safe
def recording_npz(request: HttpRequest, name: str) -> HttpResponse:
    """The entry as the compact file that the measuring program reads."""
    entry = get_object_or_404(Recording.objects.only("name", "content"), name=name)
    headers = {"Content-Disposition": f'attachment; filename="{entry.name}.npz"'}
    return HttpResponse(bytes(entry.content), content_type="application/octet-stream", headers=headers)


@require_POST
def delete_trace(request: HttpRequest, name: str) -> HttpResponse:
    return _deleted(request, get_object_or_404(Trace.objects.described(), name=name))


@require_POST
def delete_recording(request: HttpRequest, name: str) -> HttpResponse:
    return _deleted(request, get_object_or_404(Recording.objects.described(), name=name))


def _new(request: HttpRequest, kind: str, form_class: type[TraceForm] | type[RecordingForm]) -> HttpResponse:
    if request.method != "POST":
        return redirect("traces:list")
    form = form_class(request.POST, request.FILES)
    return _imported(request, form) or _refused(request, kind, form)


def _imported(request: HttpRequest, form: ImportForm) -> HttpResponse | None:
    """Lead to the entry that the form's file became, or already was; None where it became none."""
    kept = form.kept(by=member(request))
    if kept is None:
        return None
    entry, is_new = kept
    if is_new:
        messages.success(request, f"Imported as {entry.name}.")
    else:
        messages.info(request, f"Nothing was stored: the same content is already here as {entry.name}.")
    if request.htmx:  # type: ignore[attr-defined]
        return HttpResponseClientRedirect(entry.get_absolute_url())
    return redirect(entry)


def _refused(request: HttpRequest, kind: str, form: ImportForm) -> HttpResponse:
    """The form with its sentences: alone for htmx, else on its page."""
    forms: dict[str, Any] = {kind: form}
    part = f"#{kind}" if request.htmx else ""  # type: ignore[attr-defined]
    return render(request, f"traces/list.html{part}", page.library(**forms), status=422)


def _deleted(request: HttpRequest, entry: Trace | Recording) -> HttpResponse:
    if not deeds.delete(member(request), entry):
        messages.error(request, f"{entry.name} stays: an experiment names it.")
        return redirect(entry)
    messages.success(request, f"{entry.name} was deleted.")
    return redirect("traces:list")


class _Echo:
    """What `csv.writer` writes, handed back instead of kept."""

    def write(self, line: str) -> str:
        return line


def _lines(entry: Trace) -> Iterator[str]:
    writer = csv.writer(_Echo(), lineterminator="\n")
    return (writer.writerow(row) for row in chain([PLAIN_HEADER], entry.requests()))
