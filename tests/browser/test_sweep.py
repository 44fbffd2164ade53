"""A sweep in a real browser: typed as two lists, drawn as curves and heat maps that lead to their runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.webapp.experiments import rows
from webapp.experiments.models import Experiment

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

GRID = [{"concurrency": users, "prompt_tokens": tokens} for tokens in (16, 64) for users in (1, 4, 16)]
#: What is written in the first chart, in the order in which it is drawn.
WRITTEN = """() => {
  const chart = Chart.getChart(document.querySelector('[data-chart="trade-off-0"]'));
  const written = [], { fillText } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    written.push(text);
    fillText.call(this, text, ...rest);
  };
  chart.draw();
  CanvasRenderingContext2D.prototype.fillText = fillText;
  return written;
}"""


@pytest.fixture
def complaints(signed_in_page: Page, no_broker: None) -> list[str]:
    said: list[str] = []
    signed_in_page.on("console", lambda one: said.append(one.text) if one.type in ("error", "warning") else None)
    signed_in_page.on("pageerror", lambda error: said.append(str(error)))
    return said


def test_two_lists_are_a_grid(signed_in_page: Page, live_server: Any, complaints: list[str]) -> None:
    page = signed_in_page
    page.goto(f"{live_server.url}/experiments/new/")
    page.get_by_label("Concurrency").fill("1..8")
    page.get_by_label("Prompt tokens").fill("128, 512..2048")
    expect(page.get_by_text("1 variant × 16 corners")).to_be_visible()
    page.get_by_role("button", name="Queue experiment").last.click()
    expect(page.get_by_text("1×128, 2×128, 4×128, 8×128, 1×512")).to_be_visible()
    assert len(Experiment.objects.get().plan) == 16
    assert complaints == []


def test_curves_and_heat_maps_lead_to_runs(
    signed_in_page: Page, live_server: Any, member: Any, complaints: list[str]
) -> None:
    page = signed_in_page
    page.goto(live_server.url + rows.done(member, conditions=GRID).get_absolute_url())
    expect(page.get_by_role("img", name="Output tokens a second against TPOT p50 at prompt tokens 16")).to_be_visible()
    written = page.evaluate(WRITTEN)
    assert {"1", "4", "16", "TPOT p50"} <= set(written)
    page.get_by_role("link", name="TTFT p95").first.click()
    expect(page.get_by_role("img", name="Output tokens a second against TTFT p95 at prompt tokens 64")).to_be_visible()
    page.get_by_role("link", name="median step").click()
    expect(page.get_by_role("heading", name="Concurrency × prompt tokens")).to_contain_text("median step")
    assert re.search(r"against=ttft-p95&metric=step", page.url)
    page.get_by_role("table", name="none").get_by_role("row", name="16").get_by_role("link").last.click()
    expect(page.get_by_role("heading", name="One run")).to_contain_text("none at 16×64")
    assert complaints == []
