"""Errors as problem details (RFC 9457), with the sentences that the form and the command line use."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig, TooManyFieldsSent, TooManyFilesSent
from django.http import Http404, HttpRequest, HttpResponse
from django.views.defaults import server_error
from pydantic import BaseModel, Field, ValidationError
from rest_framework.exceptions import APIException, AuthenticationFailed, NotAuthenticated, ParseError
from rest_framework.response import Response

from bench_worker.errors import DoesNotFit, SpecError
from webapp.experiments.thinning import Thinned

API = "/api/v1/"
CONTENT_TYPE = "application/problem+json"


class Fault(BaseModel):
    """One value that is wrong. ``field``: its dotted name in the experiment, or the name of the parameter."""

    field: str
    message: str


class Problem(BaseModel):
    """Why a request was refused (RFC 9457)."""

    type: str = "about:blank"
    title: str = Field(description="The status in words.")
    status: int
    detail: str = Field(description="What is wrong, in one sentence.")
    errors: list[Fault] = Field(default=[], description="Every value that is wrong.")


class Refused(Exception):
    """Values of the request that are not allowed, each as (field, message). Answered 422."""

    def __init__(self, field: str, message: str, more: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(f"{field}: {message}")
        self.faults = [Fault(field=name, message=text) for name, text in [(field, message), *more]]


def problem(status: int, detail: str, faults: Sequence[Fault] = ()) -> Response:
    words = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, errors=list(faults))
    return Response(words.model_dump(), status=status, content_type=CONTENT_TYPE)


def too_large(sentence: str) -> HttpResponse:
    """What `webapp.limits` answers in the API's name to a body that it doesn't let in."""
    return _plain(413, sentence)


def fault(request: HttpRequest) -> HttpResponse:
    """What is answered where our own code fails: a problem to a program, a page to a browser. The log says why."""
    if not request.path.startswith(API):
        return server_error(request)
    return _plain(500, "This failed on our side; the server's log says why.")


def _plain(status: int, detail: str) -> HttpResponse:
    """As `problem`, outside of a view."""
    words = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail)
    return HttpResponse(words.model_dump_json(), status=status, content_type=CONTENT_TYPE)


def answer(error: Exception, context: dict[str, Any]) -> Response | None:
    """What REST framework answers to an exception of a view. None for a fault of our own, which goes on to be a 500."""
    match error:
        case SpecError():
            faults = [Fault(field=one.field, message=one.message) for one in error.errors]
            return problem(422, str(error), faults)
        case DoesNotFit():
            return problem(422, str(error), [Fault(field="experiment", message=str(error))])
        case Refused():
            return problem(422, str(error), error.faults)
        case ValidationError():
            faults = [
                Fault(field=".".join(map(str, one["loc"])) or "body", message=one["msg"]) for one in error.errors()
            ]
            return problem(422, f"{faults[0].field}: {faults[0].message}", faults)
        case Http404():
            return problem(404, str(error) or "Nothing has this address.")
        case Thinned():
            return problem(409, str(error))
        case PermissionDenied():
            return problem(403, str(error))
        case RequestDataTooBig():
            return problem(
                413, f"The form has more than {settings.DATA_UPLOAD_MAX_MEMORY_SIZE:,} bytes beside its files."
            )
        case ParseError() | TooManyFieldsSent() | TooManyFilesSent():
            return problem(422, f"body: {error}", [Fault(field="body", message=str(error))])
        case APIException():
            response = problem(error.status_code, str(error.detail))
            if isinstance(error, (NotAuthenticated, AuthenticationFailed)):
                response["WWW-Authenticate"] = "Bearer"
            return response
    return None
