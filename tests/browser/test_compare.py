"""From runs that are ticked to their comparison, in a real browser."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.furnish import CORNERS, comparing, judged
from tests.webapp.experiments import rows

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
SEVEN = ["token_choice", "expert_choice", "dynamic", "balanced", "hash", "soft", "group_limited"]


@pytest.fixture
def complaints(signed_in_page: Page, no_broker: None) -> list[str]:
    found: list[str] = []
    signed_in_page.on("console", lambda said: found.append(said.text) if said.type in ("error", "warning") else None)
    return found


def test_ticked_runs_are_compared_and_the_ticks_outlast_a_search(
    signed_in_page: Page, live_server: Any, member: Any, complaints: list[str]
) -> None:
    first, second = rows.done(member, title="One", num_steps=60), rows.done(member, title="Two", num_steps=60)
    page = signed_in_page
    page.goto(f"{live_server.url}/compare/")
    page.get_by_label("gate_up at 1×16 of One").check()
    page.get_by_label("Search", exact=True).fill("two")
    expect(page.get_by_label("none at 1×16 of One")).to_have_count(0)
    expect(page.get_by_label("gate_up at 1×16 of One")).to_be_checked()
    page.get_by_label("none at 1×16 of Two").check()
    page.get_by_role("button", name="Compare the ticked runs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare")
    expect(page.locator(".differs")).to_contain_text("kernels.fusion: gate_up → none")
    runs = (
        first.runs.get(variant="gate_up", condition="1×16").pk,
        second.runs.get(variant="none", condition="1×16").pk,
    )
    assert page.url.endswith(f"/compare/?runs={runs[0]},{runs[1]}")
    assert complaints == []


def test_the_summary_is_copied_as_markdown(
    signed_in_page: Page, live_server: Any, member: Any, complaints: list[str]
) -> None:
    page = signed_in_page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(live_server.url + comparing(rows.done(member, num_steps=60)))
    page.get_by_role("button", name="Copy as Markdown").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("**Compare**")
    assert "| gate_up (baseline) |" in copied
    assert complaints == []


def test_another_baseline_is_set_and_stays_in_the_address(
    signed_in_page: Page, live_server: Any, member: Any, complaints: list[str]
) -> None:
    page = signed_in_page
    page.goto(live_server.url + comparing(rows.done(member, num_steps=60)) + "&corner=1×16")
    page.get_by_label("Baseline").select_option("none")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_role("row", name="none baseline").first).to_be_visible()
    assert re.search(r"base=\d+", page.url)
    expect(page.get_by_role("heading", name="Stage by stage")).to_contain_text("at 1×16")
    assert complaints == []


def test_seven_strategies_are_read_without_scrolling(
    signed_in_page: Page, live_server: Any, member: Any, complaints: list[str]
) -> None:
    """The answer, every change with its interval, and which is the fastest at each corner, at 1280×800."""
    vary = {"field": "routing.strategy", "values": SEVEN}
    row = judged(rows.done(member, title="Seven routing strategies", num_steps=60, conditions=CORNERS, vary=vary))
    page = signed_in_page
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(live_server.url + row.get_absolute_url())
    expect(page.get_by_text("token_choice is fastest at every corner")).to_be_in_viewport(ratio=1)
    table = page.locator("table.contenders")
    expect(table).to_be_in_viewport(ratio=1)
    for name in SEVEN:
        expect(table.get_by_role("row", name=name)).to_be_in_viewport(ratio=1)
    assert table.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")
    assert table.locator("tbody strong").count() == len(CORNERS)
    assert complaints == []


def test_the_ticks_of_a_percentage_axis_are_told_apart(
    signed_in_page: Page, live_server: Any, member: Any, complaints: list[str]
) -> None:
    """Steps that differ by 29 to 34%, so that ticks lie half a percent apart."""
    page = signed_in_page
    page.goto(live_server.url + comparing(rows.done(member, num_steps=60)))
    ticks = page.locator("canvas[data-chart=differences]").evaluate(
        "canvas => Chart.getChart(canvas).scales.y.ticks.map(({ label }) => label)"
    )
    assert len(ticks) > 2
    assert len(set(ticks)) == len(ticks)
    assert complaints == []


def test_advice_is_queued_with_one_click(
    signed_in_page: Page, live_server: Any, member: Any, complaints: list[str]
) -> None:
    row = judged(rows.done(member, num_steps=60))
    assert row.result is not None
    page = signed_in_page
    page.goto(live_server.url + row.get_absolute_url())
    page.get_by_role("button", name="Queue: ").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(row.result["verdict"]["advice"][0]["experiment"]["title"])
    expect(page.get_by_text("Waiting for a worker")).to_be_visible()
    assert complaints == []


def test_runs_are_ticked_and_compared_without_a_script(browser: Browser, live_server: Any, signed_in: Any, member: Any,
                                                       no_broker: None) -> None:  # fmt: skip
    rows.done(member, num_steps=60)
    context = browser.new_context(java_script_enabled=False)
    session = signed_in.cookies["sessionid"].value
    context.add_cookies([{"name": "sessionid", "value": session, "url": live_server.url}])
    page = context.new_page()
    page.goto(f"{live_server.url}/compare/")
    page.get_by_label("gate_up at 1×16").check()
    page.get_by_label("none at 1×16").check()
    page.get_by_role("button", name="Compare the ticked runs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare")
    context.close()
