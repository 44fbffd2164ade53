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

View = TypeVar("View", bound=Callable[..., HttpResponse])


def takes_up_to(limit_bytes: int) -> Callable[[View], View]:
    """Marks a view that takes larger bodies than others, from those who have signed in. Files go to disk."""

    def mark(view: View) -> View:
        view.max_body_bytes = limit_bytes  # type: ignore[attr-defined]
        return view

    return mark


class BodyLimitMiddleware:
    """Refuses by the announced length; a body without one is never read at all (WSGI ends it at 0 bytes).

    Stands before whatever reads bodies, among it the check of forms' tokens.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, view: Any, *args: Any) -> HttpResponse | None:
        length = _announced(request.META.get("CONTENT_LENGTH", ""))
        limit: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        if length > limit and request.user.is_authenticated:
            limit = getattr(view, "max_body_bytes", limit)
        if length <= limit:
            return None
        left = min(length, DRAIN_BYTES)
        while left > 0 and (chunk := request.read(min(_CHUNK_BYTES, left))):
            left -= len(chunk)
        sentence = f"The request has {length:,} bytes; at most {limit:,} are accepted."
        return render(request, "413.html", {"sentence": sentence}, status=413)


def _announced(length: str) -> int:
    return int(length) if length.isdecimal() else 0
