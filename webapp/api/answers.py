"""What the API's views share: how a document is read, and how one or a page of them is answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from django.db.models import QuerySet
from django.forms import BaseForm
from pydantic import BaseModel, ConfigDict
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from webapp.api.problems import Refused


class Asked(BaseModel):
    """A document that the API takes. What has a default may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Page(BaseModel):
    """Part of a list. ``next`` and ``previous`` are whole addresses."""

    next: str | None
    previous: str | None


class Newest(CursorPagination):
    """Newest first, by the cursor in `next`."""

    ordering = "-pk"
    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 200


A = TypeVar("A", bound=Asked)
F = TypeVar("F", bound=BaseForm)


def asked(request: Request, model: type[A]) -> A:
    """The body. Raises pydantic's `ValidationError`, which `problems.answer` puts into words."""
    return model.model_validate_json(request.body)


def accepted(form: F) -> F:
    """``form``, if it is valid. Raises `Refused` with the sentences that the page shows beside its fields."""
    if not form.is_valid():
        refuse(form)
    return form


def refuse(form: BaseForm) -> NoReturn:
    """Raise `Refused` with the errors of ``form``; what is of no field alone is said of the request."""
    (field, message), *rest = [
        ("request" if name == "__all__" else name, str(text)) for name, texts in form.errors.items() for text in texts
    ]
    raise Refused(field, message, rest)


def one(document: BaseModel, status: int = 200) -> Response:
    return Response(document.model_dump(mode="json"), status=status)


def made(document: BaseModel, is_new: bool) -> Response:
    """201, or 200 for what was there already."""
    return one(document, 201 if is_new else 200)


def page(request: Request, view: APIView, rows: QuerySet[Any], document: Callable[[Any], BaseModel]) -> Response:
    pages = Newest()
    found = pages.paginate_queryset(rows, request, view)
    return pages.get_paginated_response([document(row).model_dump(mode="json") for row in found or []])
