"""From a p95 to the steps behind it, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.folds import unfold
from tests.webapp.experiments import rows

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_one_click_leads_from_a_p95_to_its_steps(signed_in_page: Page, live_server: Any, member: Any) -> None:
    page = signed_in_page
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.goto(live_server.url + rows.done(member).get_absolute_url())
    unfold(page, "What users feel")
    expect(page.get_by_role("img", name="Time to first token: share of requests")).to_be_visible()
    feel = page.get_by_role("table", name="p50 and p95")
    feel.get_by_role("row", name="none").get_by_role("link").nth(1).click()
    expect(page.get_by_text("Time per output token: the steps behind its p95")).to_be_in_viewport()
    expect(page.get_by_role("heading", name="One run")).to_contain_text("none at 4×64")
    assert complaints == []
