"""Machines over the API, and the tables of their kernels."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from tests.webapp.api.conftest import API
from tests.webapp.experiments.rows import MACHINE
from webapp.accounts.models import User
from webapp.experiments import machines
from webapp.experiments.models import Experiment, Kind

pytestmark = pytest.mark.django_db


def ask(api: Client, pk: int, document: Any, **headers: str) -> Any:
    address = f"{API}/machines/{pk}/kernels/"
    return api.post(address, json.dumps(document), content_type="application/json", headers=headers)


def test_machines_are_listed_and_read_one_by_one(api: Client) -> None:
    machine = machines.register_this(MACHINE, "gpu")
    [found] = api.get(f"{API}/machines/").json()["results"]
    assert (found["id"], found["pool"], found["details"]) == (machine.pk, "gpu", machine.details)
    assert api.get(f"{API}/machines/{machine.pk}/").json() == found
    assert api.get(f"{API}/machines/0/").status_code == 404


def test_kernels_are_measured_as_the_page_proposes(api: Client, member: User) -> None:
    machine = machines.register_this(MACHINE, "gpu")
    key = {"Idempotency-Key": "k"}
    asked = {"model": "olmoe-1b-7b", "tokens": [1, 64]}
    first, again = ask(api, machine.pk, asked, **key), ask(api, machine.pk, asked, **key)
    assert (first.status_code, again.status_code) == (201, 200)
    row = Experiment.objects.get()
    assert (row.kind, row.pool, row.author) == (Kind.KERNELS, "gpu", member)
    answer = first.json()
    assert (answer["id"], answer["kind"], answer["experiment"]) == (row.pk, "kernels", row.document)
    assert {"model": "olmoe-1b-7b", "tokens": [1, 64], "dtype": "bfloat16", "load": "uniform"}.items() <= (
        row.document.items()
    )


@pytest.mark.parametrize(
    ("asked", "field"),
    [({"model": "gpt"}, "model"), ({"tokens": []}, "tokens"), ({"tokens": [0]}, "tokens.0"),
     ({"tokens": "1, 8"}, "tokens"), ({"dtype": "int3"}, "dtype"), ({"load": "hot"}, "load"),
     ({"quantization": "int3"}, "quantization"), ({"x": 1}, "x")],
)  # fmt: skip
def test_a_bad_value_names_its_field(api: Client, asked: Any, field: str) -> None:
    response = ask(api, machines.register_this(MACHINE, "gpu").pk, asked)
    assert response.status_code == 422
    assert [fault["field"] for fault in response.json()["errors"]] == [field]
    assert not Experiment.objects.exists()


def test_what_does_not_fit_is_refused(api: Client) -> None:
    small = machines.register_this(MACHINE | {"memory_bytes": 1_000_000_000}, "gpu")
    response = ask(api, small.pk, {"model": "olmoe-1b-7b"})
    assert response.status_code == 422
    assert "needs" in response.json()["detail"]
    assert ask(api, 0, {}).status_code == 404
