"""The capacity page in a real browser: it answers while one types."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.webapp.experiments.test_own_model import MIXTRAL

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_it_answers_while_one_types(signed_in_page: Page, live_server: object) -> None:
    page = signed_in_page
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.goto(f"{live_server.url}/capacity/")  # type: ignore[attr-defined]
    expect(page.get_by_text("It fits: 65.")).to_be_visible()
    page.get_by_label("Device", exact=True).select_option("L40S")
    expect(page.get_by_text("It needs at least 2 of these")).to_be_visible()
    page.get_by_label("Tensor-parallel ranks").fill("3")
    expect(page.get_by_text("3 does not divide the 32 attention heads of qwen3-30b-a3b")).to_be_visible()
    expect(page.get_by_label("Tensor-parallel ranks")).to_be_focused()
    page.get_by_label("Tensor-parallel ranks").fill("2")
    expect(page.get_by_text("on each of 2 L40S")).to_be_visible()
    expect(page.get_by_text("does not divide")).to_have_count(0)
    assert "tp=2" in page.url
    page.reload()
    expect(page.get_by_text("on each of 2 L40S")).to_be_visible()
    page.get_by_role("button", name="Measure it").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("qwen3-30b-a3b")
    expect(page.get_by_label("Concurrency", exact=True)).to_have_value("16")
    assert complaints == []


def test_a_config_is_pasted_or_read_from_a_file(signed_in_page: Page, live_server: object, tmp_path: Path) -> None:
    page = signed_in_page
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{live_server.url}/capacity/")  # type: ignore[attr-defined]
    page.get_by_role("link", name="A config.json").click()
    page.wait_for_url("**/capacity/?as=config")  # until its scripts are there
    page.get_by_label("config.json", exact=True).fill("{")
    expect(page.get_by_text("It is not valid JSON")).to_be_visible()
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MIXTRAL))
    page.get_by_label("Read it from a file").set_input_files(file)
    expect(page.get_by_text("It does not fit: 9")).to_be_visible()
    expect(page.get_by_text("It is not valid JSON")).to_have_count(0)
    page.get_by_label("Device", exact=True).select_option("H200")
    expect(page.get_by_text("It fits: 9")).to_be_visible()
    file.write_text(" " * 200_001)
    page.get_by_label("Read it from a file").set_input_files(file)
    expect(page.get_by_text("config.json has 200,001 bytes; at most 200,000 are read.")).to_be_visible()
    assert page.url.endswith("/capacity/?as=config")
    assert complaints == []
