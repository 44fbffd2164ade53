"""The story of a team: invited, an experiment every night, one night it is slower, and the team hears of it once."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from playwright.sync_api import Browser, Page, expect

from tests.webapp.experiments import make, rows
from tests.webapp.history.make_nights import MONDAY, SMALL, day, disturb
from webapp.experiments import ingest, machines, queue
from webapp.history import alerts, nights, reruns, series
from webapp.history.models import Change, Schedule

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

SLOWER = {"stage_experts": 1.12, "step_us": 1.1}


@pytest.fixture
def administrator(signed_in_page: Page, member: Any) -> Page:
    member.role = "admin"
    member.save()
    return signed_in_page


def simulate(first: int, last: int) -> None:
    """Nights as workers live them, slower in the experts from night 20 on, with their re-runs."""
    for number in range(first, last + 1):
        nights.queue_due(day(number) + timedelta(seconds=5))
        assert measured(number)
        for hours in (1, 2):
            later = day(number) + timedelta(hours=hours)
            series.follow(later)
            reruns.look(later)
            alerts.look(later)
            measured(number + 1000)


def measured(seed: int) -> bool:
    """Carry out what is queued, if anything is."""
    row = queue.claim("default", machines.register_this(rows.MACHINE, "default"))
    if row is None:
        return False
    fence = queue.fence_of(row)
    queue.begin_ingest(fence)
    ingest.ingest(fence, make.result(make.experiment(**SMALL)), row.machine)
    disturb(row, [seed], **(SLOWER if seed % 1000 >= 20 else {}))
    return True


def test_a_slower_night_is_told_once(
    administrator: Page, browser: Browser, live_server: Any, no_broker: None, settings: Any
) -> None:
    settings.EMAIL_URL, settings.MOESCOPE_ALERT_MAIL = "smtp://mail.example.org", ["team@example.org"]
    settings.MOESCOPE_URL = live_server.url

    administrator.goto(f"{live_server.url}/team/")
    administrator.get_by_label("Name", exact=True).fill("rita")
    administrator.get_by_role("button", name="Invite").click()
    link = administrator.locator("#link").inner_text()

    page = browser.new_context().new_page()
    page.goto(live_server.url + re.sub(r"^https?://[^/]+", "", link))
    page.goto(f"{live_server.url}/experiments/new/?as=json")
    page.get_by_label("Experiment", exact=True).fill(json.dumps(make.document(**SMALL)))
    page.get_by_role("button", name="Queue experiment").click()
    page.wait_for_url(re.compile(r"/experiments/\d+/$"))
    queue.request_cancel(int(page.url.split("/")[-2]))  # no worker is here to measure it

    page.get_by_text("More", exact=True).click()
    page.get_by_role("link", name="Run every night").click()
    page.get_by_label("Time, UTC").fill("02:00")
    page.get_by_role("button", name="Make the schedule").click()
    expect(page.get_by_role("row", name=re.compile("Fusion every day at 02:00 UTC"))).to_be_visible()

    Schedule.objects.update(since=MONDAY)  # the nights are simulated, long ago
    simulate(0, 29)
    (message,) = mail.outbox
    assert message.subject.startswith("Slower: experts +1")
    assert f"since the night of {day(20):%Y-%m-%d}, confirmed by a further night." in message.body

    address = re.search(r"http\S+/history/\d+/", message.body)
    assert address is not None
    page.goto(address[0])
    expect(page.get_by_role("heading", level=1)).to_have_text("experts, base at 1×16")
    # after three nights at the new level the suspicion isn't sure enough for a re-run to do
    expect(page.get_by_text("neither confirmed it nor spoke against it; a further night decides.")).to_be_visible()
    page.get_by_label("It is").select_option("acknowledged")
    page.get_by_label("Note").fill("the new kernel")
    page.get_by_role("button", name="Say so").click()
    expect(page.get_by_role("status")).to_contain_text("is acknowledged")

    simulate(30, 33)
    assert len(mail.outbox) == 1
    assert set(Change.objects.values_list("state", flat=True)) == {"acknowledged"}
    page.context.close()
