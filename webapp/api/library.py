"""Traces and recordings over the API: what `webapp.traces` takes from a browser, in the same form."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from pydantic import BaseModel, Field
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from webapp.accounts.roles import member
from webapp.api.answers import Page, made, one, page, refuse
from webapp.api.problems import problem
from webapp.api.schema import CURSOR, PAGE_SIZE, made_once, problems, upload
from webapp.traces import deeds, views
from webapp.traces.models import Recording, Trace
from webapp.traces.page import with_uses
from webapp.traces.uploads import ImportForm, RecordingForm, TraceForm


class EntryState(BaseModel):
    """What traces and recordings have in common."""

    name: str = Field(description="How experiments name it.")
    source_file: str
    created: datetime
    author: str | None
    uses: int = Field(description="Experiments that name it, but for deleted ones.")
    url: str = Field(description="Its page.")

    @classmethod
    def of(cls, entry: Any) -> Any:
        """``entry``: of `with_uses`."""
        names = cls.model_fields.keys() - {"author", "uses", "url"}
        return cls(
            **{name: getattr(entry, name) for name in names},
            author=entry.created_by.get_username() if entry.created_by else None,
            uses=entry.num_uses,
            url=entry.get_absolute_url(),
        )


class TraceState(EntryState):
    """Requests in order of arrival, without them."""

    format: str
    num_requests: int
    span_s: float = Field(description="From the first arrival to the last.")
    total_prompt_tokens: int
    total_output_tokens: int
    prompt_quantiles: dict[str, float] = Field(description="p50, p90, p99 and max of the prompt lengths.")
    output_quantiles: dict[str, float] = Field(description="p50, p90, p99 and max of the answer lengths.")


class RecordingState(EntryState):
    """An expert load, without it."""

    layers: list[int] = Field(description="Numbers of the recorded layers in their model.")
    num_experts: int
    top_k: int | None = Field(description="Experts a token; null where the file doesn't say.")
    num_tokens: int | None = Field(description="Null where only counts were recorded.")
    num_sequences: int | None
    dropped_rows: int = Field(description="Rows of a profiling pass that were left out.")
    imbalance: list[float] = Field(description="Maximum over mean of each layer's counts.")


class TracePage(Page):
    results: list[TraceState]


class RecordingPage(Page):
    results: list[RecordingState]


class TraceList(APIView):
    parser_classes = (MultiPartParser,)

    @extend_schema(
        operation_id="traces_list", parameters=[CURSOR, PAGE_SIZE], responses={200: TracePage, **problems(404)}
    )
    def get(self, request: Request) -> Response:
        """What was imported, newest first; the built-in traces are always there."""
        return page(request, self, _traces(), TraceState.of)

    @extend_schema(
        operation_id="traces_create",
        request=upload(TraceForm),
        responses=made_once(
            TraceState,
            413,
            415,
            422,
            done="imported",
            before="The same requests were here already; nothing was stored.",
        ),
    )
    def post(self, request: Request) -> Response:
        """Import a trace file. Sent again, it is still there once."""
        entry, is_new = _kept(request, TraceForm(request.POST, request.FILES))
        return made(TraceState.of(_traces().get(pk=entry.pk)), is_new)


class RecordingList(APIView):
    parser_classes = (MultiPartParser,)

    @extend_schema(
        operation_id="recordings_list", parameters=[CURSOR, PAGE_SIZE], responses={200: RecordingPage, **problems(404)}
    )
    def get(self, request: Request) -> Response:
        """What was imported, newest first."""
        return page(request, self, _recordings(), RecordingState.of)

    @extend_schema(
        operation_id="recordings_create",
        request=upload(RecordingForm),
        responses=made_once(
            RecordingState, 413, 415, 422, done="imported", before="The same load was here already; nothing was stored."
        ),
    )
    def post(self, request: Request) -> Response:
        """Import a recording of expert load, from one file or SGLang's dumps of all ranks. Sent again, it is still
        there once."""
        entry, is_new = _kept(request, RecordingForm(request.POST, request.FILES))
        return made(RecordingState.of(_recordings().get(pk=entry.pk)), is_new)


class TraceOne(APIView):
    @extend_schema(operation_id="traces_get", responses={200: TraceState, **problems(404)})
    def get(self, request: Request, name: str) -> Response:
        """What is known of a trace."""
        return one(TraceState.of(get_object_or_404(_traces(), name=name)))

    @extend_schema(operation_id="traces_delete", responses={204: None, **problems(404, 409)})
    def delete(self, request: Request, name: str) -> Response:
        """Remove it for good, unless an experiment names it."""
        return _deleted(request, get_object_or_404(_traces(), name=name))


class RecordingOne(APIView):
    @extend_schema(operation_id="recordings_get", responses={200: RecordingState, **problems(404)})
    def get(self, request: Request, name: str) -> Response:
        """What is known of a recording."""
        return one(RecordingState.of(get_object_or_404(_recordings(), name=name)))

    @extend_schema(operation_id="recordings_delete", responses={204: None, **problems(404, 409)})
    def delete(self, request: Request, name: str) -> Response:
        """Remove it for good, unless an experiment names it."""
        return _deleted(request, get_object_or_404(_recordings(), name=name))


class TraceFile(APIView):
    @extend_schema(operation_id="traces_file", responses={(200, "text/csv"): OpenApiTypes.STR, **problems(404)})
    def get(self, request: Request, name: str) -> HttpResponseBase:
        """The requests, as the CSV that the measuring program reads."""
        return views.trace_csv(_plain(request), name)


class RecordingFile(APIView):
    @extend_schema(
        operation_id="recordings_file",
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY, **problems(404)},
    )
    def get(self, request: Request, name: str) -> HttpResponseBase:
        """The load, as the npz that the measuring program reads."""
        return views.recording_npz(_plain(request), name)


def _traces() -> QuerySet[Trace]:
    return with_uses(Trace.objects.described())


def _recordings() -> QuerySet[Recording]:
    return with_uses(Recording.objects.described())


def _kept(request: Request, form: ImportForm) -> tuple[Trace | Recording, bool]:
    kept = form.kept(by=member(request))
    if kept is None:
        refuse(form)
    return kept


def _deleted(request: Request, entry: Trace | Recording) -> Response:
    if not deeds.delete(member(request), entry):
        return problem(409, f"{entry.name} stays: an experiment names it.")
    return Response(status=204)


def _plain(request: Request) -> HttpRequest:
    """What a page's view takes."""
    plain: HttpRequest = request._request
    return plain
