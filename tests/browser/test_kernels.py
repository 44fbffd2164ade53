"""Expert kernels in a real browser: greyed out where they can't run, measured with one click, and their rules."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.webapp.experiments import make, rows
from webapp.experiments import machines
from webapp.experiments.models import Experiment, Kind

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def site(signed_in_page: Page, live_server: Any, no_broker: None) -> Page:
    """A signed-in page that opens addresses of the live server."""
    opened = signed_in_page.goto
    signed_in_page.goto = lambda address: opened(live_server.url + address)  # type: ignore[method-assign]
    return signed_in_page


def option(site: Page, label: str, value: str) -> Any:
    return site.get_by_label(label, exact=True).locator(f"option[value={value}]")


def test_what_the_pool_can_not_run_is_greyed_out_live(site: Page, member: Any) -> None:
    machines.register_this(make.MACHINE | {"backends": make.backends("zentorch")}, "default")
    machines.register_this(make.MACHINE | {"backends": make.backends()}, "other")
    site.goto("/experiments/new/")
    zentorch, whole = option(site, "Expert kernels", "zentorch"), option(site, "Fusion", "whole")
    expect(zentorch).to_be_disabled()
    expect(zentorch).to_have_attribute("title", re.compile("can't run: it is not installed here"))
    expect(whole).to_be_disabled()  # of deepspeed, which is chosen
    expect(option(site, "Expert kernels", "loop")).to_be_enabled()
    site.get_by_label("Pool").select_option("other")
    expect(zentorch).to_be_enabled()
    site.get_by_label("Expert kernels").select_option("zentorch")
    expect(whole).to_be_enabled()
    site.get_by_label("Pool").select_option("default")
    expect(site.locator("#missing .slower")).to_have_text(re.compile("^'zentorch' can't run"))
    expect(zentorch).to_be_enabled()  # a greyed-out choice would not be sent
    site.get_by_role("button", name="Queue experiment").last.click()
    expect(site.locator(".field", has=site.get_by_label("Expert kernels")).locator(".errorlist")).to_be_visible()
    assert not Experiment.objects.exists()


def test_one_click_measures_the_kernels_and_leads_to_them(site: Page, member: Any) -> None:
    machine = machines.register_this(make.MACHINE, "default")
    site.goto(machine.get_absolute_url())
    site.get_by_role("button", name="Measure the kernels").first.click()
    expect(site.get_by_role("heading", level=1)).to_have_text("Kernels: qwen3-30b-a3b, bfloat16")
    expect(site.get_by_text("Waiting for a worker of pool default.")).to_be_visible()
    site.get_by_role("button", name="Cancel").click()
    expect(site.get_by_text("Canceled before it ran.")).to_be_visible()
    assert Experiment.objects.get().kind == Kind.KERNELS


def test_two_tables_are_chosen_and_stay_in_the_address(site: Page, member: Any) -> None:
    first, second = rows.measured_kernels(member), rows.measured_kernels(member, make.table(slower=1.25, day=2))
    rows.measured_kernels(member, make.table(slower=1.3, day=3))
    assert first.machine is not None
    site.goto(first.machine.get_absolute_url())
    site.get_by_label("Table", exact=True).select_option(str(second.pk))
    site.get_by_label("Compared with").select_option(str(first.pk))
    site.get_by_role("button", name="Show").click()
    expect(site).to_have_url(re.compile(rf"\?table={second.pk}&before={first.pk}$"))
    expect(site.get_by_text("Of 10 times, 10 slower by more than 5%.")).to_be_visible()


def test_ceilings_over_time_are_drawn_beside_their_table(site: Page, member: Any) -> None:
    problems: list[str] = []
    site.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    first = rows.measured_kernels(member)
    rows.measured_kernels(member, make.table(slower=1.25, day=2))
    assert first.machine is not None
    site.goto(first.machine.get_absolute_url())
    memory = site.get_by_role("img", name=re.compile("^Memory at best, in GB.s, at each of 2 calibrations"))
    expect(memory).to_be_visible()
    drawn = site.evaluate("Chart.getChart(document.querySelector('[data-chart=ceiling-memory]')).data.datasets[0].data")
    assert drawn == [40, 32]
    expect(site.get_by_role("row", name=re.compile("2026-03-02 02:00 UTC 2 32.0 GB.s"))).to_be_visible()
    assert problems == []


def test_the_rule_of_a_chip_is_one_click_away(site: Page, member: Any) -> None:
    site.goto(rows.done(member).get_absolute_url())
    rule = site.get_by_text("Steps went one way")
    expect(rule).to_be_hidden()
    site.locator("td a.noise", has_text="drifting").click()
    expect(site.get_by_role("heading", name=re.compile("How steady"))).to_be_in_viewport()
    site.locator("summary.noise", has_text="drifting").click()
    expect(rule).to_be_visible()
