"""Labels say what was measured, in words of the team: ``image=2026.3``, ``engine=abc123``. They are marks in a history.

They come with ``manage.py bench --label`` and from ``MOESCOPE_LABELS`` in the environment of the command or worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bench_worker.errors import SpecError, shown

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
MAX_VALUE, MAX_LABELS = 100, 20


def parse(texts: Iterable[str], field: str) -> dict[str, str]:
    """Labels by key, the last of a key. Raises `SpecError`, which names ``field``, for what is no ``key=value``."""
    labels: dict[str, str] = {}
    for text in texts:
        key, is_there, value = (part.strip() for part in text.partition("="))
        if not is_there or not KEY.fullmatch(key):
            allowed = "up to 40 letters, digits, dots, dashes and underscores"
            raise SpecError(field, text, f"{shown(text)} is no key=value, whose key has {allowed}.")
        if not 1 <= len(value) <= MAX_VALUE or not value.isprintable():
            has = f"has {len(value):,} characters, and " if value.isprintable() else ""
            raise SpecError(field, text, f"the value of {key} {has}must have 1 to {MAX_VALUE}, on one line.")
        labels[key] = value
    if len(labels) > MAX_LABELS:
        raise SpecError(field, list(labels), f"{len(labels)} labels are too many; {MAX_LABELS} are allowed.")
    return labels
