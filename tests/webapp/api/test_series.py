"""Series over the API: what the history pages show."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.webapp.history.make_nights import day, nights, schedule
from webapp.experiments import queue
from webapp.history.models import Change, Series

pytestmark = pytest.mark.django_db
ADDRESS = "/api/v1/series/"


@pytest.fixture
def slowed(member: Any, monkeypatch: pytest.MonkeyPatch) -> Series:
    monkeypatch.setattr(queue, "wake", lambda pool: None)
    nights(schedule(member), 0, 18, from_night=10, stage_experts=1.12)
    return Series.objects.get(metric="stage.experts")


def test_a_series_comes_with_its_values_and_changes(api: Client, slowed: Series) -> None:
    found = {row["metric"]: row for row in api.get(ADDRESS).json()["results"]}
    assert len(found) == 9
    row, change = found["stage.experts"], slowed.changes.get()
    assert (row["id"], row["title"], row["machine"]) == (slowed.pk, "Fusion", "AMD EPYC, 2 cores")
    assert (row["recent"], row["week"], row["nights"]) == (slowed.recent, slowed.week, 19)
    assert row["url"] == slowed.get_absolute_url()
    first = f"{day(10):%Y-%m-%dT%H:%M:%SZ}"
    assert row["changes"] == [
        {"first_night": first, "ratio": change.ratio, "p_value": change.p_value, "is_confirmed": True, "state": "new"}
    ]
    assert found["stage.route"]["changes"] == []


def test_those_with_an_open_change_alone(api: Client, slowed: Series) -> None:
    assert [row["id"] for row in api.get(f"{ADDRESS}?changed=true").json()["results"]] == [slowed.pk]
    Change.objects.update(state="expected")
    assert api.get(f"{ADDRESS}?changed=true").json()["results"] == []


def test_any_other_word_is_refused(api: Client) -> None:
    response = api.get(f"{ADDRESS}?changed=yes")
    assert response.status_code == 422
    assert response.json()["errors"] == [{"field": "changed", "message": "'yes' is not one of true, false"}]


def test_many_take_as_many_queries_as_few(api: Client, slowed: Series, django_assert_max_num_queries: Any) -> None:
    with django_assert_max_num_queries(6):
        api.get(ADDRESS)
