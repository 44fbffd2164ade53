"""docs/api.md lists every address of the pages and every operation of the API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver
from drf_spectacular.generators import SchemaGenerator

from tests.webapp.api.conftest import API

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "api.md").read_text()
ROWS = re.findall(r"^\| (`/[^|]*) \| ([^|]*) \|$", TEXT, re.MULTILINE)


def pages(resolver: Any = None, prefix: str = "/") -> Iterator[str]:
    """Every address outside the API, its variable parts as the documentation writes them."""
    for entry in (resolver or get_resolver()).url_patterns:
        address = prefix + re.sub(r"<(?:\w+:)?(\w+)>", lambda found: f"{{{found[1]}}}", str(entry.pattern))
        if isinstance(entry, URLResolver):
            yield from pages(entry, address)
        elif isinstance(entry, URLPattern) and not address.startswith(f"{API}/"):
            yield address.replace("{pk}", "{id}")


def test_every_address_of_the_pages_has_a_line() -> None:
    listed = {address for row, _ in ROWS for address in re.findall(r"`(/[^`]*)`", row)}
    assert listed == {*pages(), f"{API}/schema/", f"{API}/docs/"}


def test_every_operation_is_named_and_no_other() -> None:
    named = set(re.findall(r"`(GET|POST|PATCH|DELETE) (/[^`? ]*)", "".join(answer for _, answer in ROWS)))
    paths = SchemaGenerator().get_schema(request=None, public=True)["paths"]
    operations = {(method.upper(), path.removeprefix(API)) for path, methods in paths.items() for method in methods}
    assert named == operations
