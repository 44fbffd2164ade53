"""Schedules, over the API."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from tests.webapp.api.conftest import API, client_of
from tests.webapp.experiments.rows import put
from tests.webapp.history.make_nights import schedule
from webapp.accounts.models import Deed, Role, User
from webapp.experiments import machines
from webapp.experiments.models import Experiment
from webapp.history.models import Night, Schedule

pytestmark = pytest.mark.django_db

SCHEDULES = f"{API}/schedules/"


def post(api: Client, path: str, document: Any = None, **headers: str) -> Any:
    data = json.dumps(document) if document is not None else ""
    return api.post(f"{SCHEDULES}{path}", data, content_type="application/json", headers=headers)


def patch(api: Client, planned: Schedule, document: Any) -> Any:
    return api.patch(f"{SCHEDULES}{planned.pk}/", json.dumps(document), content_type="application/json")


def faults(response: Any) -> list[str]:
    assert response.status_code == 422
    return [fault["field"] for fault in response.json()["errors"]]


def test_what_is_left_out_is_as_the_page_proposes_it(api: Client, member: User) -> None:
    row = put(member)
    response = post(api, "", {"experiment": row.pk})
    assert response.status_code == 201
    answer, planned = response.json(), Schedule.objects.get()
    assert answer["id"] == planned.pk
    assert (answer["title"], answer["days"][0], len(answer["days"]), answer["at"]) == ("Fusion", "Mon", 7, "02:00")
    assert (answer["pool"], answer["owner"], answer["catch_up"], answer["hours"]) == ("default", "anna", "skip", 6)
    assert answer["is_on"]
    assert answer["measures_again"]
    assert answer["experiment"] == row.document
    assert answer["concerns"] == ["No worker of pool default has ever been heard of."]
    assert Deed.objects.filter(subject=str(planned)).count() == 1


def test_all_of_it_can_be_asked_for(api: Client, member: User, django_user_model: Any) -> None:
    django_user_model.objects.create_user("bert", role="runner")
    machines.register_this({"name": "m", "fingerprint": "f"}, "gpu")
    asked = {"title": "Each week", "days": ["Sun", "Mon"], "at": "2:05", "pool": "gpu", "owner": "bert",
             "catch_up": "once", "hours": 12,
             "measures_again": False}  # fmt: skip
    answer = post(api, "", {"experiment": put(member).pk} | asked).json()
    assert {name: answer[name] for name in asked} == asked | {"days": ["Mon", "Sun"], "at": "02:05"}


def test_the_same_request_with_the_same_key_makes_one_schedule(api: Client, member: User) -> None:
    asked, key = {"experiment": put(member).pk}, {"Idempotency-Key": "k"}
    first, second = post(api, "", asked, **key), post(api, "", asked, **key)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"] == Schedule.objects.get().pk


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"experiment": 0}, "experiment"), ({"experiment": "1"}, "experiment"), ({"at": "0 2 * * *"}, "at"),
     ({"days": []}, "days"), ({"days": ["monday"]}, "days.0"), ({"first_on": "2020-01-31"}, "first_on"),
     ({"first_on": "9999-12-31"}, "first_on"), ({"pool": "gpus"}, "pool"), ({"owner": "berta"}, "owner"),
     ({"owner": "vera"}, "owner"), ({"hours": 0}, "hours"), ({"hours": 10**30}, "hours"),
     ({"title": "x" * 201}, "title"), ({"title": "\x00"}, "title"), ({"cron": "x"}, "cron")],
)  # fmt: skip
def test_what_makes_no_sense_names_its_field(api: Client, member: User, changes: Any, field: str) -> None:
    User.objects.create_user("vera", role=Role.VIEWER)
    assert faults(post(api, "", {"experiment": put(member).pk} | changes)) == [field]
    assert not Schedule.objects.exists()


def test_a_refusal_is_in_the_words_of_the_page(api: Client, member: User) -> None:
    response = post(api, "", {"experiment": put(member).pk, "at": "0 2 * * *"})
    assert response.json()["detail"] == (
        "at: '0 2 * * *' is not a time of day: write hours and minutes, as in 02:30, and tick the days above."
    )


def test_a_change_keeps_what_it_does_not_name(api: Client, member: User) -> None:
    planned = schedule(member, days=[0, 2], hours=9, measures_again=False)
    answer = patch(api, planned, {"at": "03:30"}).json()
    assert (answer["at"], answer["days"], answer["hours"], answer["owner"]) == ("03:30", ["Mon", "Wed"], 9, "anna")
    assert not answer["measures_again"]
    assert patch(api, planned, {"measures_again": True}).json()["measures_again"]
    assert faults(patch(api, planned, {"experiment": 1})) == ["experiment"]
    assert faults(patch(api, planned, {"days": []})) == ["days"]


def test_a_first_day_to_come_stays_through_a_change(api: Client, member: User) -> None:
    first = datetime.now(UTC).toordinal() + 5
    planned = schedule(member, since=datetime.fromordinal(first).replace(tzinfo=UTC))
    assert patch(api, planned, {"title": "Other"}).json()["since"] == f"{planned.since:%Y-%m-%dT00:00:00Z}"


def test_it_is_switched_off_and_on(api: Client, member: User) -> None:
    planned = schedule(member)
    off = post(api, f"{planned.pk}/switch/", {"on": False}).json()
    assert (off["is_on"], off["next_due"]) == (False, None)
    on = post(api, f"{planned.pk}/switch/", {"on": True}).json()
    assert on["is_on"]
    assert on["since"] > off["since"]  # what was due while it was off does not count
    assert faults(post(api, f"{planned.pk}/switch/", {"on": "yes"})) == ["on"]


def test_it_runs_now_once_a_minute(api: Client, member: User, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = schedule(member)
    moment = datetime(2026, 5, 4, 12, 0, 30, tzinfo=UTC)
    monkeypatch.setattr("webapp.history.nights.timezone.now", lambda: moment)
    key = {"Idempotency-Key": "k"}
    first, again, other = (post(api, f"{planned.pk}/run/", **one) for one in (key, key, {}))
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert first.json()["experiment"] == again.json()["experiment"] == Experiment.objects.get().pk
    assert other.json()["detail"] == f"Schedule {planned.pk} was begun in this minute already."
    assert api.get(f"{SCHEDULES}{planned.pk}/").json()["nights"] == [first.json()]


def test_what_can_not_be_queued_now_says_why(api: Client, member: User) -> None:
    planned = schedule(None)
    response = post(api, f"{planned.pk}/run/")
    assert response.status_code == 409
    assert response.json()["detail"] == (
        f"Schedule {planned.pk} is not queued: Its owner is gone: give it another one."
    )
    assert Night.objects.get().experiment is None


def test_what_was_deleted_runs_no_more(api: Client, member: User) -> None:
    planned = schedule(member)
    assert api.delete(f"{SCHEDULES}{planned.pk}/").status_code == 204
    assert api.get(f"{SCHEDULES}{planned.pk}/").status_code == 404
    assert not Schedule.objects.exists()


@pytest.mark.parametrize("deed", ["patch", "delete", "switch"])
def test_a_runner_changes_only_their_own(api: Client, member: User, deed: str) -> None:
    planned = schedule(User.objects.create_user("bert", role=Role.RUNNER))
    if deed == "switch":
        response = post(api, f"{planned.pk}/switch/", {"on": False})
    else:
        response = getattr(api, deed)(f"{SCHEDULES}{planned.pk}/", "{}", content_type="application/json")
    assert response.status_code == 403
    assert response.json()["detail"] == "Only bert or an administrator may change this."
    admin = client_of(User.objects.create_user("olga", role=Role.ADMIN))
    assert patch(admin, planned, {"title": "Theirs"}).status_code == 200


def test_the_list_takes_as_many_queries_for_many(api: Client, member: User, django_assert_num_queries: Any) -> None:
    schedule(member)
    api.get(SCHEDULES)
    for _ in range(3):
        with django_assert_num_queries(4):  # token; schedules, of which none has a night, machines; the page
            api.get(SCHEDULES)
        schedule(member)
    assert len(api.get(f"{SCHEDULES}?page_size=2").json()["results"]) == 2
