"""Experts and ranks in a real browser: from a step to another, and the pictures on a narrow screen."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.folds import unfold
from tests.webapp.experiments import rows

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def complaints(signed_in_page: Page) -> list[str]:
    said: list[str] = []
    signed_in_page.on("console", lambda line: said.append(line.text) if line.type in ("error", "warning") else None)
    return said


def test_one_click_leads_to_the_step_with_the_least_waiting(
    signed_in_page: Page, live_server: Any, member: Any, complaints: list[str]
) -> None:
    page = signed_in_page
    page.goto(live_server.url + rows.on_ranks(member, [0, 0, 1, 1]).get_absolute_url())
    unfold(page, "Experts and ranks")
    expect(page.get_by_text("Measured compute, modelled network. Nodes of 8 H200")).to_be_visible()
    expect(page.get_by_role("img", name="Time of each rank in the step by stage")).to_be_visible()
    page.get_by_role("link", name="Least waiting: step 0").click()
    expect(page.get_by_role("heading", name="Who waits for whom")).to_contain_text("step 0")
    expect(page.get_by_text("The others wait for rank 3")).to_be_in_viewport()
    page.get_by_text("The bytes of each pair of ranks").click()
    expect(page.get_by_role("table", name="Dispatched from the rank of the row")).to_be_visible()
    assert complaints == []


def test_hundreds_of_ranks_fit_a_narrow_screen(
    signed_in_page: Page, live_server: Any, member: Any, complaints: list[str]
) -> None:
    page = signed_in_page
    page.set_viewport_size({"width": 390, "height": 800})
    row = rows.on_ranks(member, [rank // 8 for rank in range(128)], parallel={"redundant_experts": 64})
    page.goto(live_server.url + row.get_absolute_url())
    unfold(page, "Experts and ranks")
    expect(page.get_by_text("And 8 more nodes alike.")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_text("The numbers of each rank").click()
    expect(page.get_by_role("row", name="127 ")).to_be_visible()
    assert complaints == []
