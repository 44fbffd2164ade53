"""Home: what runs, what waits, what ended, and on which machines."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tests.webapp.experiments.rows import MACHINE, done, ended, measuring, put, run, text_of, title_of
from webapp.experiments import machines, upkeep
from webapp.experiments.models import Experiment, Machine, State

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]


def test_an_empty_home_offers_the_first_experiment(signed_in: Any) -> None:
    response = signed_in.get("/")
    assert "Nothing runs now." in text_of(response)
    assert "Queue the first experiment" in text_of(response)
    assert "No worker has been heard of in the last day" in text_of(response)
    assert title_of(response) == "Home · Moescope"


def test_home_shows_what_runs_what_waits_and_what_ended(signed_in: Any, member: Any) -> None:
    done(member, title="Ended well")
    ended(run(member, title="Ended badly"), State.FAILED)
    measuring(member)
    put(member, title="Still waits")
    response = signed_in.get("/")
    text = text_of(response)
    assert "Fusion olmoe-1b-7b Cancel 60% ends in about 40 s step 3 of 5, variant none, corner 1×16" in text
    assert "on AMD EPYC, 2 cores of pool default · heartbeat just now" in text
    assert "Queue 1 waiting, in this order Still waits olmoe-1b-7b anna" in text
    assert "Ended badly failed: The measuring program was killed (SIGKILL)." in text
    assert "Ended well gate_up has the shortest median step at every corner." in text
    assert title_of(response) == "60% · Home · Moescope"


def test_before_steps_are_measured_nobody_can_say_when_it_ends(signed_in: Any, member: Any) -> None:
    run(member)
    text = text_of(signed_in.get("/"))
    assert "starting the measuring program" in text
    assert "ends in" not in text


def test_the_queue_is_in_the_order_in_which_it_is_taken(signed_in: Any, member: Any) -> None:
    for title in ("first", "second", "third"):
        put(member, title=title)
    text = text_of(signed_in.get("/"))
    assert text.index("first") < text.index("second") < text.index("third")


def test_a_long_queue_leads_to_all_of_it(signed_in: Any, member: Any) -> None:
    for _ in range(9):
        put(member)
    page = signed_in.get("/")
    assert "All 9 of them" in text_of(page)
    assert 'href="/experiments/?state=queued"' in page.content.decode()


def test_an_overdue_heartbeat_is_pointed_out(signed_in: Any, member: Any) -> None:
    row = measuring(member)
    Experiment.objects.filter(pk=row.pk).update(heartbeat_at=timezone.now() - timedelta(seconds=40))
    assert "last heartbeat 40 s ago" in text_of(signed_in.get("/"))


def test_a_running_experiment_is_canceled_from_home(signed_in: Any, member: Any) -> None:
    row = measuring(member)
    response = signed_in.post(f"{row.get_absolute_url()}cancel/", {"back": "home"}, follow=True)
    assert response.redirect_chain == [("/", 302)]
    assert "being canceled" in text_of(response)


def test_machines_say_whether_they_work(signed_in: Any, member: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, host in enumerate(("quiet", "gone", "idle")):
        monkeypatch.setattr(machines.socket, "gethostname", lambda host=host: host)
        machines.register_this(MACHINE | {"name": f"machine {number}"}, "default")
    Machine.objects.filter(host="quiet").update(last_seen=timezone.now() - timedelta(minutes=3))
    Machine.objects.filter(host="gone").update(last_seen=timezone.now() - timedelta(days=2))
    monkeypatch.setattr(machines.socket, "gethostname", lambda: "busy")
    row = measuring(member)
    text = text_of(signed_in.get("/"))
    assert f"AMD EPYC, 2 cores busy, pool default measures #{row.pk} just now" in text
    assert "machine 0 quiet, pool default silent 3 min ago" in text
    assert "machine 2 idle, pool default ready just now" in text
    assert "machine 1" not in text


def test_work_that_no_worker_will_take_is_pointed_out(signed_in: Any, member: Any) -> None:
    put(member), put(member)
    sentence = "2 wait in pool default, and no worker of that pool has been heard of."
    assert sentence in text_of(signed_in.get("/"))
    machines.register_this(MACHINE, "default")
    assert sentence not in text_of(signed_in.get("/"))
    Machine.objects.update(last_seen=timezone.now() - timedelta(minutes=3))
    assert sentence in text_of(signed_in.get("/"))


def test_what_was_deleted_is_not_shown(signed_in: Any, member: Any) -> None:
    for row in (done(member, title="Ended well"), put(member, title="Still waits")):
        upkeep.delete(row.pk)
    text = text_of(signed_in.get("/"))
    assert "Ended well" not in text
    assert "Still waits" not in text


def test_home_asks_only_for_its_part_again(signed_in: Any, member: Any) -> None:
    measuring(member)
    response = signed_in.get("/", HTTP_HX_REQUEST="true")
    part = response.content.decode()
    assert '<div id="now" hx-ext="morph" hx-get="/"' in part
    assert "<title>60% · Home · Moescope</title>" in part
    assert "<h1" not in part
    assert "60%" in part
    assert "HX-Request" in response["Vary"]  # else going back could show the part alone


@pytest.mark.parametrize("count", [1, 12])
def test_homes_queries_do_not_grow(signed_in: Any, member: Any, count: int, django_assert_num_queries: Any) -> None:
    for _ in range(count):
        ended(run(member))
    for _ in range(count):
        measuring(member)
    for _ in range(count):
        put(member)
    with django_assert_num_queries(8):  # session, user; running, numbers waiting, machines, waiting, schedules, recent
        signed_in.get("/")
