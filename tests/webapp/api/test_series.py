"""The history, over the API."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.webapp.api.conftest import API
from tests.webapp.history.make_nights import MONDAY, day, nights, schedule
from webapp.accounts.models import User
from webapp.experiments import upkeep
from webapp.experiments.models import Experiment
from webapp.history.models import Series

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
