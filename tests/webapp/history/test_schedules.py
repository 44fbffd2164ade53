"""The pages of the schedules."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tests.webapp.experiments.rows import done, put, text_of
from tests.webapp.history.make_nights import schedule
from webapp.accounts.models import Deed
from webapp.experiments.models import Experiment
from webapp.history import nights
from webapp.history.models import Night, Schedule

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]


def posted(row: Experiment, **changes: Any) -> dict[str, Any]:
    usual = {"experiment": row.pk, "title": "Nightly", "days": [0, 1, 2, 3, 4], "at": "2:30", "first_on": "",
             "pool": "default", "owner": row.author_id, "catch_up": "once", "hours": 4}  # fmt: skip
    return usual | changes


def test_an_empty_list_offers_the_first_schedule_and_the_form_an_experiment(signed_in: Any) -> None:
    assert "Make the first schedule" in text_of(signed_in.get("/schedules/"))
    assert "Queue the first experiment" in text_of(signed_in.get("/schedules/new/"))


def test_a_schedule_copies_the_experiment_and_counts_from_now(signed_in: Any, member: Any) -> None:
    row = done(member)
    before = timezone.now()
    response = signed_in.post("/schedules/new/", posted(row))
    made = Schedule.objects.get()
    assert response.url == f"/schedules/#schedule-{made.pk}"
    assert made.document == row.document | {"title": "Nightly"}
    assert (made.days, f"{made.at:%H:%M}") == ([0, 1, 2, 3, 4], "02:30")
    assert (made.owner, made.catch_up, made.hours) == (member, "once", 4)
    assert before <= made.since <= timezone.now()
    assert "Nightly Mon to Fri at 02:30 UTC" in text_of(signed_in.get("/schedules/"))


def test_every_day_is_proposed(signed_in: Any, member: Any) -> None:
    put(member)
    assert signed_in.get("/schedules/new/").text.count(" checked") == 7


def test_the_form_proposes_the_experiment_that_it_was_called_for(signed_in: Any, member: Any) -> None:
    wanted = put(member)
    put(member)
    assert f'<option value="{wanted.pk}" selected>' in signed_in.get(f"/schedules/new/?experiment={wanted.pk}").text
    assert f"/schedules/new/?experiment={wanted.pk}" in signed_in.get(wanted.get_absolute_url()).text


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"at": "0 2 * * *"},
            "'0 2 * * *' is not a time of day: write hours and minutes, as in 02:30, and tick the days",
        ),
        ({"at": "24:00"}, "'24:00' is not a time of day"),
        ({"first_on": "2020-01-01"}, "2020-01-01 02:30 UTC is in the past (it is "),
        ({"first_on": "tomorrow"}, "Write the day as year-month-day, as in 2031-01-31."),
        ({"days": []}, "Tick at least one day."),
        ({"days": [7]}, "7 is not one of the available choices."),
        ({"pool": "moon"}, "moon is not one of the available choices."),
        ({"hours": 0}, "greater than or equal to 1"),
        ({"hours": 100}, "less than or equal to 72"),
        ({"experiment": 10**9}, "1000000000 is not one of the available choices."),
        ({"experiment": "x" * 30}, "is not one of the available choices."),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(
    signed_in: Any, member: Any, changes: dict[str, Any], sentence: str
) -> None:
    response = signed_in.post("/schedules/new/", posted(done(member), **changes))
    assert response.status_code == 422
    assert sentence in text_of(response)
    assert not Schedule.objects.exists()


def test_a_disabled_owner_is_refused(signed_in: Any, member: Any, django_user_model: Any) -> None:
    bert = django_user_model.objects.create_user("bert", is_active=False)
    response = signed_in.post("/schedules/new/", posted(done(member), owner=bert.pk))
    assert "bert is disabled: choose a member who may sign in." in text_of(response)


def test_an_owner_who_may_only_read_is_refused(signed_in: Any, member: Any, django_user_model: Any) -> None:
    vera = django_user_model.objects.create_user("vera", role="viewer")
    response = signed_in.post("/schedules/new/", posted(done(member), owner=vera.pk))
    assert "vera may only read: choose a runner or an administrator." in text_of(response)


@pytest.mark.parametrize(("said", "kept"), [("False", False), ("True", True), ("", True)])
def test_a_slower_night_is_measured_again_unless_the_schedule_says_to_wait(
    signed_in: Any, member: Any, said: str, kept: bool
) -> None:
    signed_in.post("/schedules/new/", posted(done(member), measures_again=said))
    made = Schedule.objects.get()
    assert made.measures_again == kept
    assert f'value="{kept}" selected' in signed_in.get(f"/schedules/{made.pk}/change/").text


def test_a_first_day_to_come_is_waited_for(signed_in: Any, member: Any) -> None:
    day = (timezone.now() + timedelta(days=3)).date()
    signed_in.post("/schedules/new/", posted(done(member), first_on=day.isoformat()))
    assert Schedule.objects.get().since.date() == day


def test_a_change_keeps_the_experiment(signed_in: Any, member: Any) -> None:
    made = schedule(member)
    shown = signed_in.get(f"/schedules/{made.pk}/change/").text
    assert 'value="02:00"' in shown
    assert 'name="experiment"' not in shown
    signed_in.post(f"/schedules/{made.pk}/change/", posted(put(member), title="", at="03:00"))
    changed = Schedule.objects.get()
    assert (changed.document, changed.title, f"{changed.at:%H:%M}") == (made.document, "Fusion", "03:00")
    assert changed.since > made.since


def test_what_was_due_while_it_was_off_does_not_count(signed_in: Any, member: Any) -> None:
    made = schedule(member)
    signed_in.post(f"/schedules/{made.pk}/switch/", {"on": "0"})
    made.refresh_from_db()
    assert (made.is_on, made.since.year) == (False, 2026)
    before = timezone.now()
    signed_in.post(f"/schedules/{made.pk}/switch/", {"on": "1"})
    made.refresh_from_db()
    assert made.is_on
    assert made.since >= before


def test_run_now_leads_to_the_experiment_and_a_second_click_back(signed_in: Any, member: Any) -> None:
    made = schedule(member)
    assert signed_in.post(f"/schedules/{made.pk}/run/").url == Experiment.objects.get().get_absolute_url()
    again = signed_in.post(f"/schedules/{made.pk}/run/", follow=True)
    assert "still waits for a worker" in text_of(again) or "in this minute already" in text_of(again)
    assert Experiment.objects.count() == 1


def test_the_audit_list_names_who_pressed_and_else_the_schedule_never_its_owner(
    signed_in: Any, member: Any, django_user_model: Any
) -> None:
    bert = django_user_model.objects.create_user("bert", role="runner")
    made = schedule(bert, since=timezone.now() - timedelta(days=2))
    nights.queue_due(timezone.now().replace(hour=2, minute=1))
    Experiment.objects.update(state="canceled", finished_at=timezone.now())
    signed_in.post(f"/schedules/{made.pk}/run/")
    assert [(row.author, row.title) for row in Experiment.objects.all()] == [(bert, "Fusion")] * 2
    deeds = Deed.objects.order_by("pk").values_list("name", "member", "action")
    assert list(deeds) == [("schedule Fusion", None, "queued"), ("anna", member.pk, "queued")]


def test_a_schedules_page_lists_its_nights(signed_in: Any, member: Any) -> None:
    made = schedule(member)
    Night.objects.create(schedule=made, due_at=timezone.now(), experiment=done(member))
    Night.objects.create(schedule=made, due_at=timezone.now() - timedelta(days=1), left_out="No worker was there.")
    text = text_of(signed_in.get(f"/schedules/{made.pk}/"))
    assert "Runs every day at 02:00 UTC in pool default, for anna" in text
    assert "gate_up has the shortest median step at every corner." in text
    assert "No worker was there." in text


def test_deleting_a_schedule_keeps_its_experiments(signed_in: Any, member: Any) -> None:
    made = schedule(member)
    Night.objects.create(schedule=made, due_at=timezone.now(), experiment=put(member))
    response = signed_in.post(f"/schedules/{made.pk}/delete/", follow=True)
    assert "Fusion runs no more. Its experiments stay." in text_of(response)
    assert (Schedule.objects.count(), Experiment.objects.count()) == (0, 1)


def test_home_says_how_the_nights_went(signed_in: Any, member: Any) -> None:
    assert "Last night" not in text_of(signed_in.get("/"))
    schedule(member, since=timezone.now())
    text = text_of(signed_in.get("/"))
    assert "Last night 1 schedule Fusion : No worker of pool default has ever been heard of." in text


def test_home_asks_for_the_nights_by_themselves_and_rarely(signed_in: Any, member: Any) -> None:
    schedule(member, since=timezone.now())
    whole = signed_in.get("/").text
    assert 'hx-get="/history/last-night/" hx-trigger="every 60s"' in whole
    polled = signed_in.get("/", headers={"HX-Request": "true"})
    assert "Last night" not in text_of(polled)
    assert 'id="ended" hx-ext="morph" hx-swap-oob="morph"' in polled.text
    part = signed_in.get("/history/last-night/", headers={"HX-Request": "true"})
    assert text_of(part).startswith("Last night 1 schedule")
    assert signed_in.get("/history/last-night/").url == "/"


@pytest.mark.parametrize("deed", ["change", "switch", "delete"])
def test_a_runner_changes_only_schedules_of_their_own(signed_in: Any, django_user_model: Any, deed: str) -> None:
    made = schedule(django_user_model.objects.create_user("bert", role="runner"))
    response = signed_in.post(f"/schedules/{made.pk}/{deed}/", {"on": "0"})
    assert response.status_code == 403
    assert "Only bert or an administrator may change this." in text_of(response)
    made.refresh_from_db()
    assert made.is_on
    assert f"/schedules/{made.pk}/{deed}/" not in signed_in.get("/schedules/").text


def test_what_was_done_to_schedules_is_in_the_audit_list(signed_in: Any, member: Any) -> None:
    signed_in.post("/schedules/new/", posted(done(member)))
    signed_in.post(f"/schedules/{Schedule.objects.get().pk}/delete/")
    deeds = Deed.objects.order_by("pk").filter(subject__startswith="Nightly, Mon to Fri at 02:30 UTC")
    assert list(deeds.values_list("name", "action")) == [("anna", "changed"), ("anna", "deleted")]
