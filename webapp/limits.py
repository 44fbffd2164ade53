"""The largest request body that is read; a larger one is answered 413, in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

_CHUNK_BYTES = 65_536
#: A refused body up to this size is read away first: a browser shows the answer only once it has sent everything.
DRAIN_BYTES = 64_000_000

View = TypeVar("View", bound=Callable[..., Any])


def takes_up_to(limit_bytes: int) -> Callable[[View], View]:
    """Marks a view that takes larger bodies than others, from those who have signed in. Files go to disk."""

    def mark(view: View) -> View:
        view.max_body_bytes = limit_bytes  # type: ignore[attr-defined]
        return view

    return mark


def lets_in_itself(refuse: Callable[[str], HttpResponse]) -> Callable[[View], View]:
    """Marks a view that looks who asks before it reads a body, as those of the API do: its limit holds for strangers,
    too. ``refuse`` puts the sentence about a larger one in its way."""

    def mark(view: View) -> View:
        view.refuse_body = refuse  # type: ignore[attr-defined]
        return view

    return mark


class BodyLimitMiddleware:
    """Refuses by the announced length; a body without one is never read at all (WSGI ends it at 0 bytes).

    Stands before whatever reads bodies, among it the check of forms' tokens.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if response.status_code in (401, 403):
            _drain(request)
        return response

    def process_view(self, request: HttpRequest, view: Any, *args: Any) -> HttpResponse | None:
        length = _announced(request.META.get("CONTENT_LENGTH", ""))
        limit: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        refuse: Callable[[str], HttpResponse] | None = getattr(view, "refuse_body", None)
        if length > limit and (refuse or request.user.is_authenticated):
            limit = getattr(view, "max_body_bytes", limit)
        if length <= limit:
            return None
        _drain(request)
        sentence = f"The request has {length:,} bytes; at most {limit:,} are accepted."
        return refuse(sentence) if refuse else render(request, "413.html", {"sentence": sentence}, status=413)


def _drain(request: HttpRequest) -> None:
    """Read away what of a refused body is still to come."""
    left = DRAIN_BYTES
    while left > 0 and (chunk := request.read(min(_CHUNK_BYTES, left))):
        left -= len(chunk)


def _announced(length: str) -> int:
    return int(length) if length.isdecimal() else 0
