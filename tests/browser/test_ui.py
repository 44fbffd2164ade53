"""What pages share, in a real browser: colours, charts, keyboard, and nothing that the policy blocks."""

import re

import pytest
from playwright.sync_api import expect

from tests.webapp.experiments.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PAPER = {"light": "rgb(253, 253, 252)", "dark": "rgb(20, 23, 27)"}


@pytest.fixture
def complaints(page):
    """What the browser's console says: blocked styles and scripts, missing files, exceptions."""
    said = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    return said


@pytest.fixture
def chart_page(signed_in_page, live_server, settings, complaints):
    settings.ROOT_URLCONF = "tests.browser.chart_page"
    signed_in_page.goto(f"{live_server.url}/chart/")
    return signed_in_page


def paper(page):
    return page.evaluate("getComputedStyle(document.documentElement).backgroundColor")


def pixels(page):
    """The set of colours in the chart, as ``r,g,b``."""
    return set(
        page.evaluate(
            """() => {
                const canvas = document.querySelector('canvas[data-chart]');
                const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
                const seen = new Set();
                for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) seen.add(data.slice(i, i + 3).join());
                return [...seen];
            }"""
        )
    )


def test_the_switch_changes_the_colours_and_is_remembered(page, live_server, complaints):
    page.emulate_media(color_scheme="light")
    page.goto(f"{live_server.url}/sign-in/")
    assert paper(page) == PAPER["light"]
    page.get_by_role("button", name="Switch to dark colours").click()
    assert paper(page) == PAPER["dark"]
    page.reload()
    assert paper(page) == PAPER["dark"]
    page.get_by_role("button", name="Switch to light colours").click()
    assert paper(page) == PAPER["light"]
    assert complaints == []


def test_without_a_choice_the_system_decides(page, live_server):
    page.emulate_media(color_scheme="dark")
    page.goto(f"{live_server.url}/sign-in/")
    assert paper(page) == PAPER["dark"]


def test_a_chart_is_drawn_in_the_stages_colours(chart_page, complaints):
    chart_page.emulate_media(color_scheme="light")
    assert {"0,114,178", "213,94,0"} <= pixels(chart_page)  # experts #0072B2, idle #D55E00
    expect(chart_page.get_by_role("img", name="Stage times at two corners")).to_be_visible()
    assert complaints == []


def test_a_chart_takes_the_other_colours_with_the_switch(chart_page):
    chart_page.emulate_media(color_scheme="light")
    chart_page.get_by_role("button", name="Switch to dark colours").click()
    assert "0,114,178" not in pixels(chart_page)
    assert "76,159,214" in pixels(chart_page)  # #4C9FD6


def test_a_chart_formats_its_axis_and_its_tooltips(chart_page):
    texts = chart_page.evaluate(
        """() => {
            const chart = Chart.getChart(document.querySelector('canvas'));
            const item = { dataset: { label: 'experts' }, parsed: { x: 4237 } };
            return [chart.scales.x.ticks.at(-1).label, chart.options.plugins.tooltip.callbacks.label(item)];
        }"""
    )
    assert re.fullmatch(r"\d+(\.\d+)?\u00a0ms", texts[0])
    assert texts[1] == " experts  4.24\u00a0ms"


def test_a_chart_is_drawn_again_in_a_fragment_that_htmx_swapped(chart_page, complaints):
    chart_page.evaluate("document.querySelector('canvas').dataset.old = ''")
    chart_page.locator("#live").click(position={"x": 1, "y": 1})
    new = "document.querySelector('canvas:not([data-old])')"
    assert wait_until(lambda: chart_page.evaluate(f"Boolean({new} && Chart.getChart({new}))"))
    assert "0,114,178" in pixels(chart_page)
    assert chart_page.evaluate("Object.keys(Chart.instances).length") == 1  # the swapped-out one is let go
    assert complaints == []


def test_a_command_is_copied_with_one_click(chart_page):
    chart_page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chart_page.get_by_role("button", name="Copy").click()
    expect(chart_page.get_by_role("button", name="Copied")).to_be_visible()
    assert chart_page.evaluate("navigator.clipboard.readText()") == "python -m bench_worker run file.json"


def test_the_keyboard_reaches_the_content_first_and_closes_the_menu(signed_in_page, live_server):
    page = signed_in_page
    page.goto(f"{live_server.url}/nowhere/")  # a page where no field takes the focus
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    menu = page.locator("details.menu")
    menu.locator("summary").press("Enter")
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Sign out")).to_be_hidden()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("address", ["/sign-in/", "/password/", "/nowhere/"])
def test_no_page_is_wider_than_the_screen(signed_in_page, live_server, width, address):
    page = signed_in_page
    page.set_viewport_size({"width": width, "height": 800})
    if address == "/sign-in/":
        page.context.clear_cookies()
    page.goto(live_server.url + address)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
