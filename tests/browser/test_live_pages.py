"""Pages that change while they are read: nothing that the reader holds is taken away."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.folds import unfold
from tests.webapp.experiments import make, rows
from tests.webapp.experiments.waiting import wait_until
from webapp.experiments import ingest, queue
from webapp.experiments.models import Experiment, State

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_broker")]

#: Marks the elements of the page, to see later whether they are still the same ones.
MARK = "document.querySelectorAll('a, button, summary, canvas, td').forEach((element) => { element.marked = true; })"


@pytest.fixture
def site(signed_in_page: Page, live_server: Any) -> Page:
    """A signed-in page that opens addresses of the live server."""
    opened = signed_in_page.goto
    signed_in_page.goto = lambda address: opened(live_server.url + address)  # type: ignore[method-assign]
    return signed_in_page


def advance(row: Experiment, done: int, finished: int) -> None:
    """The worker's next heartbeat."""
    runs = [run.model_dump(mode="json", include={"variant", "condition", "status", "summary"})
            for run in make.result(make.experiment()).runs[:finished]]  # fmt: skip
    steps = {"done": done, "total": 10, "since": 0}
    progress = {"phase": "measure", "variant": "none", "condition": "1×16", "steps": steps}
    queue.beat(queue.fence_of(row), progress, runs)


def finish(row: Experiment) -> None:
    queue.begin_ingest(queue.fence_of(row))
    ingest.ingest(queue.fence_of(row), make.result(make.experiment()), row.machine)


def test_home_follows_what_runs_and_keeps_the_focus(site: Page, member: Any) -> None:
    row = rows.measuring(member)
    site.goto("/")
    site.evaluate(MARK)
    cancel = site.get_by_role("button", name="Cancel Fusion")
    cancel.focus()
    advance(row, 9, 1)
    expect(site.get_by_text("90%")).to_be_visible()
    expect(site).to_have_title("90% · Home · Moescope")
    expect(cancel).to_be_focused()
    assert cancel.evaluate("button => button.marked")
    finish(row)
    expect(site.get_by_text("gate_up has the shortest median step")).to_be_visible()
    expect(site.get_by_text("Nothing runs now.")).to_be_visible()


def test_an_experiment_is_canceled_from_home_with_the_keyboard(site: Page, member: Any) -> None:
    row = rows.measuring(member)
    site.goto("/")
    site.get_by_role("button", name="Cancel Fusion").press("Enter")
    expect(site.get_by_text("being canceled")).to_be_visible()
    expect(site.get_by_role("heading", level=1)).to_have_text("What is happening")
    row.refresh_from_db()
    assert row.cancel_requested


def test_going_back_to_home_shows_the_whole_page(site: Page, member: Any) -> None:
    row = rows.measuring(member)
    site.goto("/")
    advance(row, 9, 1)
    expect(site.get_by_text("90%")).to_be_visible()  # so the part was asked for under the page's address
    site.get_by_role("link", name="Fusion").click()
    expect(site.get_by_role("heading", level=1)).to_have_text("Fusion")
    site.go_back()
    expect(site.get_by_role("heading", level=1)).to_have_text("What is happening")


def test_the_experiments_page_fills_in_and_keeps_what_the_reader_opened(site: Page, member: Any) -> None:
    row = rows.measuring(member)
    site.goto(row.get_absolute_url())
    expect(site.locator("canvas")).to_have_count(1)
    site.evaluate(MARK)
    site.get_by_text("The rest").click()
    menu = site.locator("#more")
    menu.locator("summary").click()
    drawn = site.evaluate("Chart.getChart(document.querySelector('canvas')).id")

    advance(row, 9, 1)  # no new run: the chart stays as it is drawn
    expect(site.get_by_text("90%")).to_be_visible()
    expect(site).to_have_title("90% · Fusion · Moescope")
    assert site.evaluate("Chart.getChart(document.querySelector('canvas')).id") == drawn
    assert site.locator("canvas").evaluate("canvas => canvas.marked")
    expect(site.get_by_text("routing.strategy")).to_be_visible()
    expect(menu.get_by_role("button", name="Delete")).to_be_visible()

    advance(row, 9, 2)  # a second variant: bars in milliseconds, a chart a corner
    expect(site.get_by_role("heading", name="1×16")).to_be_visible()
    stages = "Chart.getChart(document.querySelector('canvas[data-chart=stages-0]'))"
    assert wait_until(lambda: site.evaluate(f"Boolean({stages})"))
    assert site.evaluate(f"{stages}.data.labels") == ["gate_up", "none"]
    expect(site.get_by_text("routing.strategy")).to_be_visible()


def test_an_ended_experiment_is_not_asked_for_again(site: Page, member: Any) -> None:
    row = rows.measuring(member)
    site.goto(row.get_absolute_url())
    finish(row)
    expect(site.get_by_role("heading", name="How sure")).to_be_visible()
    expect(site.get_by_role("button", name="Run again")).to_be_visible()
    # throughput against latency and stages, at two corners; a distribution of each latency; the steps of a run
    expect(site.locator("canvas")).to_have_count(8)
    drawn = "[...document.querySelectorAll('canvas')].every((canvas) => Chart.getChart(canvas))"
    assert wait_until(lambda: site.evaluate(drawn))
    asked: list[str] = []
    site.on("request", lambda request: asked.append(request.url))
    site.wait_for_timeout(2500)  # more than two of the pauses between two questions
    assert asked == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_routing_of_another_corner_is_one_click_away(site: Page, member: Any, width: int) -> None:
    site.set_viewport_size({"width": width, "height": 800})
    site.goto(rows.done(member).get_absolute_url())
    expect(site.get_by_role("heading", name="How tokens were routed at 4×64")).to_be_visible()
    unfold(site, "How tokens were routed")
    site.locator("#routing").get_by_role("link", name="1×16").click()
    expect(site.get_by_role("heading", name="How tokens were routed at 1×16")).to_be_in_viewport()
    for picture in site.locator(".pictures svg").all():
        expect(picture).to_be_visible()
    site.get_by_text("The numbers of these pictures").click()
    expect(site.get_by_role("table", name="Tokens by how many experts they get")).to_be_visible()
    assert site.evaluate("document.documentElement.scrollWidth") <= width


def test_words_are_edited_in_their_place(site: Page, member: Any) -> None:
    row = rows.done(member)
    site.goto(row.get_absolute_url())
    site.evaluate("window.loadedOnce = true")
    site.get_by_role("link", name="Edit title, tags and notes").click()
    title = site.get_by_label("Title")
    expect(title).to_be_focused()
    title.fill("Better name")
    site.get_by_label("Tags").fill("a b c<")
    site.get_by_label("Notes").fill("to remember")
    site.get_by_role("button", name="Save", exact=True).click()
    expect(site.get_by_text("'c<' is not allowed")).to_be_visible()
    expect(title).to_be_focused()  # the form that came back is in place: nothing takes the focus any more
    site.get_by_label("Tags").fill("nightly, h100")
    site.get_by_role("button", name="Save", exact=True).click()
    expect(site.get_by_role("heading", level=1)).to_have_text("Better name")
    expect(site).to_have_title("Done · Better name · Moescope")
    expect(site.get_by_text("to remember")).to_be_visible()
    assert site.evaluate("window.loadedOnce") is True
    site.get_by_role("link", name="nightly").click()
    expect(site).to_have_url(re.compile(r"/experiments/\?tag=nightly$"))
    expect(site.get_by_role("row", name=re.compile("Better name"))).to_be_visible()


def test_a_deleted_experiment_comes_back_with_undo(site: Page, member: Any) -> None:
    row = rows.done(member)
    site.goto(row.get_absolute_url())
    site.locator("#more > summary").click()
    site.get_by_role("button", name="Delete").click()
    expect(site.get_by_text("Deleted “Fusion”; it is kept for 7 days.")).to_be_visible()
    expect(site.get_by_text("Every experiment of the team will be listed here")).to_be_visible()
    site.get_by_role("button", name="Undo").click()
    expect(site.get_by_role("heading", level=1)).to_have_text("Fusion")


def test_an_experiment_is_copied_as_json_and_pasted_back(site: Page, member: Any) -> None:
    row = rows.done(member)
    site.context.grant_permissions(["clipboard-read", "clipboard-write"])
    site.goto(row.get_absolute_url())
    site.locator("#more > summary").click()
    site.get_by_role("button", name="Copy as JSON").click()
    expect(site.get_by_role("button", name="Copied")).to_be_visible()
    site.goto("/experiments/new/?as=json")
    field = site.get_by_label("Experiment", exact=True)
    field.fill("")
    field.press("Control+v")
    assert json.loads(field.input_value()) == row.document
    expect(site.get_by_text("from 1 like it")).to_be_visible()  # the time, as the pasted document stands
    site.get_by_role("button", name="Queue experiment").click()
    site.wait_for_url(re.compile(r"/experiments/\d+/$"))
    assert Experiment.objects.get(state=State.QUEUED).document == row.document


def test_a_closed_clipboard_is_filled_all_the_same(site: Page, member: Any) -> None:
    """Over plain http, scripts have no clipboard of their own."""
    site.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    site.goto(rows.done(member).get_absolute_url())
    site.locator("#more > summary").click()
    site.get_by_role("button", name="Copy as JSON").click()
    expect(site.get_by_role("button", name="Copied")).to_be_visible()


def test_the_filters_work_while_they_are_set_and_stay_in_the_address(site: Page, member: Any) -> None:
    rows.done(member, title="Ended well")
    rows.put(member, title="Still waits")
    site.goto("/experiments/")
    site.evaluate("window.loadedOnce = true")
    site.get_by_label("State").select_option("queued")
    expect(site.get_by_role("link", name="Ended well")).to_be_hidden()
    expect(site).to_have_url(re.compile(r"/experiments/\?state=queued$"))
    site.get_by_label("Search").press_sequentially("nothing")
    expect(site.get_by_text("No experiment passes these filters.")).to_be_visible()
    assert site.evaluate("window.loadedOnce") is True
    site.reload()
    expect(site.get_by_label("Search")).to_have_value("nothing")
    expect(site.get_by_label("State")).to_have_value("queued")
    site.get_by_role("button", name="Show all").click()
    expect(site.get_by_role("link", name="Ended well")).to_be_visible()
    site.go_back()
    expect(site.get_by_role("heading", level=1)).to_have_text("Experiments")
    expect(site.get_by_text("No experiment passes these filters.")).to_be_visible()


@pytest.mark.parametrize("name", ["home", "list", "new", "experiment", "machine"])
def test_every_control_is_reached_with_the_tab_key_and_shows_it(site: Page, member: Any, name: str) -> None:
    row = rows.done(member)
    rows.put(member, title="Still waits")
    assert row.machine
    addresses = {"home": "/", "list": "/experiments/", "new": "/experiments/new/", "experiment":
                 row.get_absolute_url(), "machine": row.machine.get_absolute_url()}  # fmt: skip
    site.goto(addresses[name])
    site.evaluate("document.body.focus()")
    controls = "a[href], button:not([disabled]), input:not([type=hidden]), select, textarea, summary, [tabindex='0']"
    wanted = site.evaluate(
        f"""() => [...document.querySelectorAll("{controls}")]
            .filter((element) => element.checkVisibility()).map((element, number) => (element.number = number))"""
    )
    reached: list[int] = []
    for _ in range(len(wanted) + 5):
        site.keyboard.press("Tab")
        found = site.evaluate(
            """() => {
                const { outlineStyle, boxShadow, left } = getComputedStyle(document.activeElement);
                const shown = outlineStyle !== "none" || boxShadow !== "none" || left === "0px";
                return [document.activeElement.number ?? null, shown, document.activeElement.outerHTML.slice(0, 100)];
            }"""
        )
        if found[0] is None or found[0] in reached:
            break
        assert found[1], f"the focus is not seen on {found[2]}"
        reached.append(found[0])
    assert reached == sorted(reached) == wanted
