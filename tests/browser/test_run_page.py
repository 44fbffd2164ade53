"""The page of one run in a real browser: requests over time, and a table of steps that a click sorts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.folds import unfold
from tests.webapp.experiments import rows
from webapp.experiments import thinning
from webapp.experiments.models import Experiment

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

#: Where each part of the drawn requests is, in pixels from left to right: request by request.
BARS = """() => {
  const chart = Chart.getChart(document.querySelector('[data-chart="over-time"]'));
  const bar = ({ x, y, base }) => [base ?? x, x, y].map(Math.round);
  return Object.fromEntries(
    chart.data.datasets.map(({ label }, place) => [label, chart.getDatasetMeta(place).data.map(bar)]),
  );
}"""


def test_a_run_is_seen_request_by_request_and_step_by_step(signed_in_page: Page, live_server: Any, member: Any) -> None:
    page = signed_in_page
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(live_server.url + rows.done(member).get_absolute_url())
    unfold(page, "One run")
    page.get_by_role("link", name="Every request over time").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("gate_up at 1×16")
    expect(page.get_by_role("img", name="Requests from arrival to last token")).to_be_visible()

    page.wait_for_load_state("load")  # with the scripts that draw
    bars = page.evaluate(BARS)
    for first, second in (("waiting", "prefill"), ("prefill", "decode")):
        for (_, end, y), (begin, _, beside) in zip(bars[first], bars[second], strict=True):
            assert (pytest.approx(begin, abs=1), beside) == (end, y)  # one after the other, in one line
    begin, end, line = bars["prefill"][1]  # from 2 to 4.5 ms; preempted at 3 and 4
    assert [y for _, _, y in bars["preempted"]] == [line, line]
    assert begin < bars["preempted"][0][1] < bars["preempted"][1][1] < end

    steps = page.get_by_role("table", name="Prefill and decode in tokens")
    steps.get_by_role("link", name="Time", exact=True).click()
    expect(steps.get_by_role("columnheader", name="Time")).to_have_attribute("aria-sort", "descending")
    expect(steps.locator("tbody tr").first.get_by_role("cell").first).to_have_text("4")
    expect(page.get_by_role("heading", name="Steps")).to_be_in_viewport()
    page.get_by_role("link", name="behind the p95 of TPOT (2)").click()
    expect(steps.locator("tbody tr")).to_have_count(2)
    assert complaints == []


def test_a_run_without_steps_keeps_its_requests(signed_in_page: Page, live_server: Any, member: Any) -> None:
    page, row = signed_in_page, rows.done(member)
    thinning.thin(Experiment.objects.all(), 1, datetime(2026, 5, 1, tzinfo=UTC))
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(live_server.url + row.get_absolute_url())
    expect(page.get_by_text("Step samples were thinned on 2026-05-01")).to_be_visible()
    unfold(page, "One run")
    expect(page.get_by_role("table", name="One layer, stage by stage: medians over 5 steps")).to_be_visible()
    page.get_by_role("link", name="Every request over time").click()
    expect(page.get_by_role("img", name="Requests from arrival to last token")).to_be_visible()
    expect(page.get_by_text("Step samples were thinned on 2026-05-01")).to_be_visible()
    assert complaints == []
