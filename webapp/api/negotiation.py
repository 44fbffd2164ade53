"""Which kind an answer is of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request


class OneKind(DefaultContentNegotiation):
    """An address answers in one kind, whatever the client says that it takes: files are no JSON."""

    def select_renderer(
        self, request: Request, renderers: Sequence[BaseRenderer], format_suffix: Any = None
    ) -> tuple[BaseRenderer, str]:
        return renderers[0], str(renderers[0].media_type)
