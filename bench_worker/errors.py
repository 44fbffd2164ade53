"""The errors a user can cause. Each is one sentence that names the field, the value and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice
from typing import Any

#: A sentence names at most so many allowed values; a library of traces may have hundreds.
MAX_NAMES = 40


class SpecError(ValueError):
    """A value of the experiment is wrong.

    ``errors`` lists every problem found as `SpecError`s; ``field``, ``value`` and ``message`` are those of the first of
    them. ``field`` is the dotted name inside the experiment (``base.routing.top_k``), or ``experiment`` when the whole
    document is at fault.
    """

    def __init__(self, field: str, value: Any, message: str, more: Iterable[SpecError] = ()) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.value = value
        self.message = message
        self.errors: list[SpecError] = [self, *more]


class Unavailable(RuntimeError):
    """A part that the experiment names can't run on this machine; the message says which and why."""


class DoesNotFit(RuntimeError):
    """The measurement needs more memory than there is; the message carries both figures."""


def shown(value: Any, limit: int = 60) -> str:
    """``value`` as a sentence can carry it: quoted as in Python, on one line, and cut at ``limit`` characters."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deep, or a whole number of more digits than Python prints
        return f"this {type(value).__name__}"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def not_one_of(value: Any, allowed: Iterable[str]) -> str:
    """The sentence for a value outside a closed set, with the nearest allowed name where one is close."""
    names = list(allowed)
    close = difflib.get_close_matches(value, names, n=1) if isinstance(value, str) else []
    hint = f" (did you mean {close[0]}?)" if close else ""
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return f"{shown(value)} is not one of {', '.join(islice(names, MAX_NAMES))}{more}{hint}"
