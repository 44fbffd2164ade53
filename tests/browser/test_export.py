"""Numbers and traces leave the page with a click."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.folds import unfold
from tests.webapp.experiments.rows import done

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_a_table_and_a_trace_come_down(
    signed_in_page: Page, live_server: Any, member: Any, no_broker: None, tmp_path: Path
) -> None:
    page, row = signed_in_page, done(member)
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.goto(f"{live_server.url}{row.get_absolute_url()}")

    page.get_by_text("Export", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Stages of the mean step (CSV)").click()
    download.value.save_as(tmp_path / "stages.csv")
    with (tmp_path / "stages.csv").open() as file:
        assert {each["variant"] for each in csv.DictReader(file)} == {"gate_up", "none"}
    page.keyboard.press("Escape")

    unfold(page, "One run")
    page.get_by_label("Steps for Perfetto").fill("1,3-4")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download trace").click()
    download.value.save_as(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event.get("cat") == "step"] == ["step 1", "step 3", "step 4"]
    assert complaints == []
