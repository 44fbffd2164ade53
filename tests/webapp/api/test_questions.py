"""Questions that need no run, over the API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from bench_worker import capacity, devices
from tests.webapp.api.conftest import API
from tests.webapp.experiments import make
from tests.webapp.experiments.rows import MACHINE, done, put
from webapp.accounts.models import User
from webapp.experiments import machines
from webapp.experiments.models import Experiment

pytestmark = pytest.mark.django_db

#: A small mixture of experts, as Hugging Face describes one.
CONFIG = {
    "model_type": "mixtral", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2,
    "vocab_size": 1000, "max_position_embeddings": 4096,
}  # fmt: skip


def post(api: Client, path: str, document: Any) -> Any:
    return api.post(f"{API}/{path}", json.dumps(document), content_type="application/json")


def test_an_outlook_queues_nothing(api: Client, member: User) -> None:
    machines.register_this(MACHINE, "default")
    done(member)
    response = post(api, "experiments/plan/", make.document())
    assert response.status_code == 200
    answer = response.json()
    assert (answer["variants"], answer["corners"], answer["runs"]) == (2, 2, 4)
    assert (answer["fits"], answer["refused"], answer["machine"]) == (True, None, MACHINE["name"])
    assert answer["deployment"]["total_bytes"] > answer["measurement_bytes"] > 0
    assert answer["device_bytes"] == MACHINE["memory_bytes"]
    assert answer["time"]["count"] == 1
    assert Experiment.objects.count() == 1


def test_an_outlook_says_what_would_be_refused(api: Client) -> None:
    machines.register_this(MACHINE | {"memory_bytes": 1_000_000_000}, "default")
    answer = post(api, "experiments/plan/", make.document()).json()
    assert answer["fits"] is False
    assert answer["refused"] == post(api, "experiments/", make.document()).json()["detail"]
    assert post(api, "experiments/plan/", {}).json()["errors"][0]["field"] == "base"
    assert post(api, "experiments/plan/?pool=gpus", make.document()).json()["errors"][0]["field"] == "pool"


def test_whether_a_model_fits_is_what_the_page_says(api: Client) -> None:
    answer = api.get(f"{API}/capacity/?model=deepseek-v3&tp=8&device=H100").json()
    assert (answer["ranks"], answer["deployment"]["fits"]) == (8, False)
    assert answer["deployment"]["device_bytes"] == devices.DEVICES["H100"].memory_bytes
    assert answer["least"]["devices"] == answer["least"]["tp"] * answer["least"]["dp"] > 8
    assert answer["measurement"]["machine"] is None
    assert answer["measurement"]["without_attention"] is None
    assert answer["copies"] is None
    copies = api.get(f"{API}/capacity/?tp=2&redundant_experts=2").json()["copies"]
    assert copies["copies"] == 2
    assert min(copies["bytes"], copies["tokens"], copies["requests"]) > 0
    usual = api.get(f"{API}/capacity/").json()
    assert usual == api.get(f"{API}/capacity/?model=qwen3-30b-a3b&concurrency=16").json()


def test_a_config_of_ones_own_is_read(api: Client) -> None:
    answer = post(api, "capacity/?tp=2", CONFIG).json()
    assert (answer["ranks"], answer["deployment"]["fits"]) == (2, True)
    capacity.Fit.model_validate(answer["deployment"])
    undivided = api.get(f"{API}/capacity/?model=olmoe-1b-7b&tp=2").json()["measurement"]
    assert "norms queries over all heads together" in undivided["without_attention"]


@pytest.mark.parametrize(
    ("query", "field"),
    [("model=gpt", "model"), ("tp=0", "tp"), ("tp=3", "tp"), ("device=X", "device"),
     ("concurrency=many", "concurrency"), ("redundant_experts=%00", "redundant_experts")],
)  # fmt: skip
def test_a_question_that_makes_no_sense_names_the_parameter(
    api: Client, signed_in: Any, query: str, field: str
) -> None:
    response = api.get(f"{API}/capacity/?{query}")
    assert response.status_code == 422
    assert [fault["field"] for fault in response.json()["errors"]] == [field]
    assert signed_in.get(f"/capacity/?{query}").status_code == 200


@pytest.mark.parametrize("document", [[], {}, {"model_type": "llama"}])
def test_a_config_that_is_none_is_refused(api: Client, document: Any) -> None:
    response = post(api, "capacity/", document)
    assert response.status_code == 422
    assert [fault["field"] for fault in response.json()["errors"]] == ["config"]


def test_runs_are_compared_as_on_the_page(api: Client, signed_in: Any, member: User) -> None:
    row = done(member)
    first, *_, last = row.runs.order_by("position").values_list("pk", flat=True)
    answer = api.get(f"{API}/compare/?runs={first}-{last}&base={first}").json()
    page = signed_in.get(answer["url"])
    assert answer["sentence"] in page.text
    table = signed_in.get(f"/compare/table/?runs={first}-{last}&base={first}&format=json")
    assert answer["rows"] == table.json()
    assert answer["base"] in answer["markdown"]
    assert answer["corner"] in {one["corner"] for one in answer["rows"]}


@pytest.mark.parametrize(
    ("query", "field"),
    [("", "runs"), ("runs=x", "runs"), ("runs=1", "runs"), ("runs=998,999", "runs"), ("base=y", "base")],
)
def test_what_can_not_be_compared_names_the_parameter(api: Client, member: User, query: str, field: str) -> None:
    numbers = ",".join(str(run.pk) for run in done(member).runs.all())
    response = api.get(
        f"{API}/compare/?{query if query.startswith('runs') or not query else f'runs={numbers}&{query}'}"
    )
    assert response.status_code == 422
    [fault] = response.json()["errors"]
    assert fault["field"] == field
    assert not fault["message"].startswith("runs: ")


def test_what_waits_has_nothing_to_compare(api: Client, member: User) -> None:
    put(member)
    assert api.get(f"{API}/compare/?runs=1-2").status_code == 422
