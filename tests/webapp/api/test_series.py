"""The history, over the API: what was measured, what changed and what the team says of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from tests.webapp.api.conftest import API
from tests.webapp.history.make_nights import MONDAY, day, nights, schedule
from tests.webapp.kept import OfKeptMember
from webapp.accounts.models import Deed, User
from webapp.experiments import upkeep
from webapp.experiments.models import Experiment
from webapp.history.models import Change, Delivery, Digest, Group, Series

pytestmark = pytest.mark.django_db


def found(api: Client, metric: str = "step_us") -> Any:
    [series] = [one for one in api.get(f"{API}/series/").json()["results"] if one["metric"] == metric]
    return series


def test_a_series_comes_with_its_nights_in_order_and_its_changes(api: Client, member: User) -> None:
    nights(schedule(member), 0, 29, from_night=20, step_us=1.2)
    series = found(api)
    assert (series["title"], series["condition"]) == ("Fusion", "1×16")
    assert series["url"] == Series.objects.get(metric="step_us").get_absolute_url()
    assert [one["at"][:10] for one in series["nights"]] == [f"{day(n):%Y-%m-%d}" for n in range(30)]
    [change] = series["changes"]
    assert change["since"][:10] == f"{day(20):%Y-%m-%d}"
    assert change["ratio"] == pytest.approx(1.2, abs=0.02)
    assert change["confirmed_at"] > f"{MONDAY:%Y-%m-%d}"
    assert change["state"] == "new"
    assert found(api, "ttft_ms")["changes"] == []


def test_deleted_experiments_are_no_nights(api: Client, member: User) -> None:
    nights(schedule(member), 0, 2)
    upkeep.delete(Experiment.objects.order_by("pk")[1].pk)
    assert [one["at"][:10] for one in found(api)["nights"]] == [f"{day(n):%Y-%m-%d}" for n in (0, 2)]


@pytest.mark.parametrize("count", [1, 4])
def test_the_list_has_a_constant_number_of_queries(
    api: Client, member: User, count: int, django_assert_num_queries: Any
) -> None:
    nights(schedule(member), 0, count)
    api.get(f"{API}/series/")
    with django_assert_num_queries(4):  # token; series with their groups, points, changes
        assert len(api.get(f"{API}/series/").json()["results"]) == 9


def send(api: Client, pk: int, document: Any) -> Any:
    return api.patch(f"{API}/changes/{pk}/", json.dumps(document), content_type="application/json")


def test_one_series_is_as_in_the_list(api: Client, member: User) -> None:
    nights(schedule(member), 0, 1)
    listed = found(api)
    assert api.get(f"{API}/series/{listed['id']}/").json() == listed
    assert api.get(f"{API}/series/0/").status_code == 404


@pytest.fixture(scope="class")
def slowed(kept_member: User) -> None:
    """A history in which the step and the first token take longer since the 20th night."""
    nights(schedule(kept_member), 0, 29, from_night=20, step_us=1.2, ttft_ms=1.2)


class TestDecisions(OfKeptMember):
    @pytest.fixture
    def change(self, slowed: None, api: Client) -> Any:
        """Of the step time."""
        [change] = found(api)["changes"]
        return change

    def test_a_decision_about_a_change_is_that_of_the_page(self, api: Client, change: Any) -> None:
        answer = send(api, change["id"], {"state": "expected", "note": "New weights."}).json()
        assert (answer["state"], answer["note"], answer["by"]) == ("expected", "New weights.", "anna")
        assert answer["metric"] == "step_us"
        assert answer["since"] == change["since"] > answer["last_before"]
        assert answer == api.get(f"{API}/changes/{change['id']}/").json()
        # the other series that changed in the same nights was told the same
        assert {one["state"] for one in api.get(f"{API}/changes/").json()["results"]} == {"expected"}
        assert api.get(f"{API}/changes/?state=new").json()["results"] == []
        assert Deed.objects.filter(action="changed", subject__endswith=" at 1×16: step_us").count() == 1

    @pytest.mark.parametrize(
        ("document", "field"),
        [({"state": "gone"}, "state"), ({}, "state"), ({"state": "noise", "note": "x" * 2001}, "note"),
         ({"state": "noise", "note": "\x00"}, "note"), ({"state": "noise", "by": "bert"}, "by"), ([], "body")],
    )  # fmt: skip
    def test_a_bad_decision_names_the_field(self, api: Client, change: Any, document: Any, field: str) -> None:
        response = send(api, change["id"], document)
        assert response.status_code == 422
        assert [fault["field"] for fault in response.json()["errors"]] == [field]
        assert Change.objects.get(pk=change["id"]).state == "new"


def test_changes_are_filtered_by_state_or_refused(api: Client) -> None:
    problem = api.get(f"{API}/changes/?state=gone").json()
    assert problem["errors"][0]["field"] == "state"
    assert api.get(f"{API}/changes/0/").status_code == 404


def test_what_was_told_says_whether_it_arrived(api: Client) -> None:
    group = Group.objects.create(fingerprint="f", machine="m", title="Fusion")
    digest = Digest.objects.create(group=group, night=day(1).date(), subject="Slower", text="By a fifth.", facts={})
    channel = "https://hooks.example/services/secret"
    Delivery.objects.create(digest=digest, channel=channel, tries=2, next_try_at=day(2), failure="It is away.")
    response = api.get(f"{API}/alerts/")
    [alert] = response.json()["results"]
    assert (alert["night"], alert["subject"], alert["text"]) == ("2026-03-03", "Slower", "By a fifth.")
    [told] = alert["deliveries"]
    assert (told["to"], told["tries"], told["sent_at"], told["failure"]) == ("hooks.example", 2, None, "It is away.")
    assert "secret" not in response.text
