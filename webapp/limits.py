"""The largest request body that is read; a larger one is answered 413, in one sentence."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

_CHUNK_BYTES = 65_536
#: A refused body up to this size is read away first: a browser shows the answer only once it has sent everything.
DRAIN_BYTES = 64_000_000


class BodyLimitMiddleware:
    """Refuses by the announced length; a body without one is never read at all (WSGI ends it at 0 bytes)."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        length = _announced(request.META.get("CONTENT_LENGTH", ""))
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        if length <= limit:
            return self.get_response(request)
        left = min(length, DRAIN_BYTES)
        while left > 0 and (chunk := request.read(min(_CHUNK_BYTES, left))):
            left -= len(chunk)
        sentence = f"The request has {length:,} bytes; at most {limit:,} are accepted."
        return render(request, "413.html", {"sentence": sentence}, status=413)


def _announced(length: str) -> int:
    return int(length) if length.isdecimal() else 0
