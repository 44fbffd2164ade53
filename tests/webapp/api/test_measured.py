"""What was measured, over the API: what comes down is what the page offers."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client

from bench_worker.result import Run
from tests.webapp.api.conftest import API
from tests.webapp.experiments import make
from tests.webapp.experiments.rows import done, measured_kernels, put
from webapp.accounts.models import User
from webapp.experiments import upkeep

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("file", ["tables/", "tables/?table=stages", "trace/", "trace/?run=1&steps=0,2-3"])
def test_files_are_those_of_the_page(api: Client, signed_in: Any, member: User, file: str) -> None:
    row = done(member)
    response = api.get(f"{API}/experiments/{row.pk}/{file}", headers={"accept": "text/csv"})
    page = signed_in.get(f"{row.get_absolute_url()}{file}")
    assert (response.status_code, response.content) == (200, page.content)
    assert response["Content-Type"] == page["Content-Type"]


@pytest.mark.parametrize(
    ("file", "field"),
    [("tables/?table=steps", "table"), ("trace/?run=first", "run"), ("trace/?steps=9-3", "steps"),
     ("trace/?steps=99", "steps")],
)  # fmt: skip
def test_a_bad_choice_names_the_parameter(api: Client, member: User, file: str, field: str) -> None:
    response = api.get(f"{API}/experiments/{done(member).pk}/{file}")
    assert response.status_code == 422
    assert [fault["field"] for fault in response.json()["errors"]] == [field]


@pytest.mark.parametrize("file", ["tables/", "trace/"])
def test_there_are_no_numbers_before_the_end_nor_of_a_table_of_kernels(api: Client, member: User, file: str) -> None:
    kernels, row = measured_kernels(member), put(member)
    response = api.get(f"{API}/experiments/{row.pk}/{file}")
    assert response.status_code == 409
    assert response.json()["detail"] == f"Experiment {row.pk} is queued; only what is done has a result."
    response = api.get(f"{API}/experiments/{kernels.pk}/{file}")
    assert (response.status_code, response.json()["detail"]) == (404, "A table of kernels has its result alone.")


def test_a_run_that_is_not_there_has_no_trace(api: Client, member: User) -> None:
    assert api.get(f"{API}/experiments/{done(member).pk}/trace/?run=99").status_code == 404


def test_one_run_has_every_step_and_request(api: Client, member: User) -> None:
    row = done(member)
    stored = row.runs.get(position=1)
    found = Run.model_validate_json(api.get(f"{API}/runs/{stored.pk}/").content)
    assert found == make.result(make.experiment()).runs[1]
    upkeep.delete(row.pk)
    assert api.get(f"{API}/runs/{stored.pk}/").status_code == 404


def test_runs_have_the_filters_of_the_page(api: Client, member: User) -> None:
    row = done(member)
    machine = quote(row.machine.name)
    for query, count in {"q=gate_up": 2, f"machine={machine}&author=anna": 4, "strategy=token_choice": 4}.items():
        assert len(api.get(f"{API}/runs/?{query}").json()["results"]) == count, query
    assert len(api.get(f"{API}/runs/?q={row.pk}&model=olmoe-1b-7b").json()["results"]) == 4
