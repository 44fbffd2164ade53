"""Bringing files into the library with a browser: by keyboard, in place, and told what is wrong before it is sent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from webapp.traces.models import Recording, Trace
from webapp.traces.store import import_trace

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
PLAIN = "arrival_s,prompt_tokens,output_tokens\n"


@pytest.fixture
def complaints(page: Page) -> list[str]:
    """What the browser's console says, but for the answers that refuse a file."""
    said: list[str] = []
    page.on(
        "console",
        lambda message: (
            said.append(message.text)
            if message.type in ("error", "warning") and "422 (Unprocessable" not in message.text
            else None
        ),
    )
    page.on("pageerror", lambda error: said.append(str(error)))
    return said


@pytest.fixture
def room(complaints: list[str], signed_in_page: Page, member: Any, live_server: Any, tmp_path: Path) -> Page:
    """The room with one entry, the reader's own, its forms closed."""
    (tmp_path / "here.csv").write_text(PLAIN + "0,10,1\n")
    import_trace(tmp_path / "here.csv", by=member)
    signed_in_page.goto(f"{live_server.url}/traces/")
    return signed_in_page


def are_drawn(room: Page) -> bool:
    """Whether every canvas has its chart once the page and its scripts have loaded."""
    room.wait_for_load_state("load")
    drawn: bool = room.evaluate("[...document.querySelectorAll('canvas')].every(canvas => Chart.getChart(canvas))")
    return drawn


def test_a_refused_file_is_said_in_place_and_a_good_one_leads_to_its_entry(
    room: Page, tmp_path: Path, complaints: list[str]
) -> None:
    (tmp_path / "bad.csv").write_text(PLAIN + "0,ten,1\n")
    (tmp_path / "good.csv").write_text(PLAIN + "0,20,1\n1,30,2\n")
    room.evaluate("window.loadedOnce = true")
    room.get_by_text("Import a trace", exact=True).press("Enter")
    form = room.locator("#trace_form")
    form.get_by_label("File").set_input_files(tmp_path / "bad.csv")
    form.get_by_label("Name").fill("mine")
    form.get_by_label("Name").press("Enter")
    sentence = "bad.csv, line 2: prompt_tokens is 'ten'; it must be a whole number from 1 to 10,000,000"
    expect(form.get_by_text(sentence)).to_be_visible()
    expect(form.get_by_label("File")).to_have_attribute("aria-describedby", re.compile("trace_file_error"))
    assert room.evaluate("window.loadedOnce")

    form.get_by_label("File").set_input_files(tmp_path / "good.csv")
    expect(form.get_by_label("Name")).to_have_value("mine")
    form.get_by_role("button", name="Import").press("Enter")
    expect(room.get_by_role("heading", level=1)).to_have_text("mine")
    expect(room.get_by_text("Imported as mine.")).to_be_visible()
    expect(room.locator("canvas")).to_have_count(3)
    assert are_drawn(room)
    assert complaints == []


def test_a_recording_is_imported_and_drawn(room: Page, tmp_path: Path, complaints: list[str]) -> None:
    (tmp_path / "load.json").write_text('{"counts": [[3, 1], [2, 2]]}')
    form = room.locator("#recording_form")
    form.get_by_label("File").set_input_files(tmp_path / "load.json")
    form.get_by_role("button", name="Import").click()
    expect(room.get_by_role("heading", level=1)).to_have_text("load")
    assert are_drawn(room)
    assert Recording.objects.get().name == "load"
    assert complaints == []


def test_a_file_that_is_too_large_is_never_sent(room: Page, tmp_path: Path, complaints: list[str]) -> None:
    (tmp_path / "large.csv").write_text(PLAIN + "0,20,1\n")
    sent: list[str] = []
    room.on("request", lambda asked: sent.append(asked.method))
    room.get_by_text("Import a trace", exact=True).click()
    form = room.locator("#trace_form")
    form.get_by_label("File").evaluate("input => { input.dataset.maxBytes = 10; input.dataset.maxSize = '10 B'; }")
    form.get_by_label("File").set_input_files(tmp_path / "large.csv")
    sentence = "large.csv has 45 bytes; at most 10 B are accepted."
    expect(form.get_by_role("alert")).to_have_text(sentence)
    form.get_by_role("button", name="Import").click()
    expect(form.get_by_role("alert")).to_have_text(sentence)
    expect(form.get_by_role("button", name="Import")).to_be_enabled()
    assert "POST" not in sent
    assert complaints == []


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (413, "The server takes no file as large as this one."),
        (502, "The server could not take the file (502). Nothing was stored."),
        (None, "The file did not arrive: the connection broke off. Nothing was stored."),
    ],
)
def test_an_upload_that_fails_on_its_way_is_said(room: Page, tmp_path: Path, status: int | None, sentence: str) -> None:
    (tmp_path / "a.csv").write_text(PLAIN + "0,20,1\n")
    room.route("**/traces/requests/", lambda route: route.fulfill(status=status) if status else route.abort())
    room.get_by_text("Import a trace", exact=True).click()
    form = room.locator("#trace_form")
    form.get_by_label("File").set_input_files(tmp_path / "a.csv")
    form.get_by_role("button", name="Import").click()
    expect(form.get_by_role("alert")).to_have_text(sentence)
    expect(form.locator("progress")).to_be_hidden()


def test_an_entry_is_deleted_with_the_keyboard(room: Page, complaints: list[str]) -> None:
    room.get_by_role("link", name="here").click()
    room.locator("main details.menu summary").press("Enter")
    room.get_by_role("button", name="Delete here for good").press("Enter")
    expect(room.get_by_text("here was deleted.")).to_be_visible()
    assert not Trace.objects.exists()
    assert complaints == []
