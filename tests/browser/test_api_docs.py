"""The API's page draws itself from our own files, within the strict policy."""

from __future__ import annotations

from typing import Any

import pytest
from drf_spectacular.generators import SchemaGenerator
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_every_operation_is_listed_without_a_word_on_the_console(signed_in_page: Page, live_server: Any) -> None:
    paths = SchemaGenerator().get_schema(request=None, public=True)["paths"]
    operations = sum(map(len, paths.values()))
    complaints: list[str] = []
    signed_in_page.on("console", lambda said: complaints.append(said.text))
    signed_in_page.on("pageerror", lambda error: complaints.append(str(error)))
    signed_in_page.on(
        "request", lambda asked: asked.url.startswith((live_server.url, "data:")) or complaints.append(asked.url)
    )
    signed_in_page.goto(f"{live_server.url}/api/v1/docs/")
    expect(signed_in_page.locator(".opblock")).to_have_count(operations)
    assert signed_in_page.locator("h1").count() == 1
    signed_in_page.locator("#operations-experiments-experiments_create").click()
    expect(signed_in_page.get_by_text("Queue an experiment file, schema 1.")).to_be_visible()
    expect(signed_in_page.get_by_role("button", name="Authorize")).to_be_visible()
    assert not complaints
