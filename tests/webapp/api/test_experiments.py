"""What a browser does, over the API."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import pytest
from django.test import Client

from bench_worker.result import Result
from tests.webapp.api.conftest import API, client_of
from tests.webapp.experiments import make
from tests.webapp.experiments.rows import MACHINE, done, measured_kernels, measuring, put
from webapp.accounts.models import Deed, User
from webapp.api import once
from webapp.experiments import machines, thinning
from webapp.experiments.models import Experiment

pytestmark = pytest.mark.django_db

EXPERIMENTS = f"{API}/experiments/"


def send(api: Client, document: Any, query: str = "", **headers: str) -> Any:
    data = document if isinstance(document, str) else json.dumps(document)
    return api.post(f"{EXPERIMENTS}{query}", data, content_type="application/json", headers=headers)


# Queue


def test_an_experiment_is_queued_as_the_form_would(api: Client, member: User) -> None:
    response = send(api, make.document())
    row = Experiment.objects.get()
    assert response.status_code == 201
    answer = response.json()
    assert (answer["id"], answer["state"], answer["author"]) == (row.pk, "queued", "anna")
    assert (answer["url"], answer["experiment"]) == (row.get_absolute_url(), row.document)
    assert row.document == make.experiment().document()
    assert row.author == member
    assert Deed.objects.filter(action="queued").count() == 1


def test_a_bad_value_is_named_in_the_words_of_the_command_line(api: Client) -> None:
    document = {"base": {"model": "olmoe-1b-7b", "routing": {"top_k": 0}, "layers": -1}}
    response = send(api, document)
    assert response.status_code == 422
    assert response["Content-Type"] == "application/problem+json"
    problem = response.json()
    assert problem["title"] == HTTPStatus(422).phrase
    assert {fault["field"] for fault in problem["errors"]} == {"base.routing.top_k", "base.layers"}
    first = problem["errors"][0]
    assert problem["detail"] == f"{first['field']}: {first['message']}"
    assert not Experiment.objects.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"a": NaN}', "\xff"])
def test_what_is_no_experiment_is_refused(api: Client, text: str) -> None:
    response = send(api, text)
    assert response.status_code == 422
    assert response.json()["errors"]


def test_what_does_not_fit_is_refused(api: Client) -> None:
    machines.register_this(MACHINE | {"memory_bytes": 1_000_000_000}, "default")
    response = send(api, make.document())
    assert response.status_code == 422
    assert "1.0 GB free" in response.json()["detail"]
    assert response.json()["errors"][0]["field"] == "experiment"


def test_a_pool_is_named_or_refused(api: Client) -> None:
    machines.register_this(MACHINE, "gpu")
    assert send(api, make.document(), "?pool=gpu").json()["pool"] == "gpu"
    problem = send(api, make.document(), "?pool=gpus").json()
    assert problem["errors"] == [{"field": "pool", "message": "'gpus' is not one of default, gpu (did you mean gpu?)"}]


def test_labels_are_kept_or_refused(api: Client) -> None:
    send(api, make.document(), "?label=image%3D2&label=site%3Dlab")
    assert Experiment.objects.get().labels == {"image": "2", "site": "lab"}
    assert api.get(EXPERIMENTS).json()["results"][0]["labels"] == {"image": "2", "site": "lab"}
    response = send(api, make.document(), "?label=image")
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "label"


# Once


def test_the_same_request_with_the_same_key_is_done_once(api: Client) -> None:
    key = {"Idempotency-Key": "k-1"}
    first, second = send(api, make.document(), **key), send(api, make.document(), **key)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    assert send(api, make.document(), **{"Idempotency-Key": "k-2"}).status_code == 201
    assert send(api, make.document()).status_code == send(api, make.document()).status_code == 201
    assert Experiment.objects.count() == 4


def test_a_key_stands_for_one_request(api: Client) -> None:
    key = {"Idempotency-Key": "k-1"}
    send(api, make.document(), **key)
    response = send(api, make.document(title="Another"), **key)
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "Idempotency-Key"


def test_a_refused_request_leaves_its_key_unused(api: Client) -> None:
    key = {"Idempotency-Key": "k-1"}
    assert send(api, {}, **key).status_code == 422
    assert send(api, make.document(), **key).status_code == 201


@pytest.mark.parametrize("key", ["", "a b", "ä", "x" * 201])
def test_a_key_is_short_and_visible(api: Client, key: str) -> None:
    response = send(api, make.document(), **{"Idempotency-Key": key})
    assert response.status_code == 422
    assert response.json()["detail"] == "Idempotency-Key: a key has 1 to 200 visible ASCII characters"


def test_keys_are_each_members_own_and_last_a_day(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    key = {"Idempotency-Key": "k-1"}
    other = client_of(User.objects.create_user("bert", role="runner"))
    assert send(api, make.document(), **key).status_code == 201
    assert send(other, make.document(), **key).status_code == 201
    monkeypatch.setattr(once, "KEPT_FOR", timedelta(0))
    assert send(api, make.document(), **key).status_code == 201


# Read


def test_one_experiment_says_how_far_it_is(api: Client, member: User) -> None:
    row = measuring(member)
    answer = api.get(f"{EXPERIMENTS}{row.pk}/").json()
    assert (answer["state"], answer["percent"], answer["machine"]) == ("running", 60, MACHINE["name"])
    assert answer["doing"] == "step 3 of 5, variant none, corner 1×16"
    assert answer["left_s"] == pytest.approx(40, abs=5)


def test_its_result_is_the_file(api: Client, member: User) -> None:
    row = done(member)
    response = api.get(f"{EXPERIMENTS}{row.pk}/result/")
    assert Result.model_validate_json(response.content) == make.result(make.experiment())


def test_what_was_thinned_has_no_result_any_more(api: Client, member: User) -> None:
    row = done(member)
    thinning.thin(Experiment.objects.all(), 1, datetime(2026, 5, 1, tzinfo=UTC))
    response = api.get(f"{EXPERIMENTS}{row.pk}/result/")
    assert response.status_code == 409
    assert response.json()["detail"].startswith("Step samples were thinned on 2026-05-01: medians, ")


def test_what_is_not_done_has_no_result_yet(api: Client, member: User) -> None:
    row = put(member)
    response = api.get(f"{EXPERIMENTS}{row.pk}/result/")
    assert response.status_code == 409
    assert response.json()["detail"] == f"Experiment {row.pk} is queued; only what is done has a result."


def test_the_list_goes_on_by_cursor_whatever_comes_in_meanwhile(api: Client, member: User) -> None:
    ids = [put(member).pk for _ in range(5)]
    first = api.get(f"{EXPERIMENTS}?page_size=2").json()
    put(member)
    second = api.get(first["next"]).json()
    third = api.get(second["next"]).json()
    found = [row["id"] for page in (first, second, third) for row in page["results"]]
    assert found == ids[::-1]
    assert (first["previous"], third["next"]) == (None, None)
    assert api.get(f"{EXPERIMENTS}?cursor=nonsense").status_code == 404


def test_the_list_is_filtered_by_state(api: Client, member: User) -> None:
    row = done(member)
    put(member)
    assert [one["id"] for one in api.get(f"{EXPERIMENTS}?state=done").json()["results"]] == [row.pk]
    response = api.get(f"{EXPERIMENTS}?state=lost")
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "state"


def test_the_list_has_the_filters_of_the_page(api: Client, member: User, django_user_model: Any) -> None:
    bert = django_user_model.objects.create_user("bert", role="runner")
    kernels, row = measured_kernels(member), put(bert, title="Rowdy batches")
    Experiment.objects.filter(pk=row.pk).update(tags=["nightly"])
    deleted = put(member)
    api.delete(f"{EXPERIMENTS}{deleted.pk}/")
    for query, found in {
        "q=rowdy": [row], "model=olmoe-1b-7b&author=bert": [row], "tag=nightly": [row], "kind=kernels": [kernels],
        "state=deleted": [deleted], "q=rowdy&author=anna": [],
    }.items():  # fmt: skip
        results = api.get(f"{EXPERIMENTS}?{query}").json()["results"]
        assert [one["id"] for one in results] == [one.pk for one in found], query


@pytest.mark.parametrize(
    ("query", "field"),
    [("author=nobody", "author"), ("author=%00", "author"), ("tag=none", "tag"), ("model=gpt", "model"),
     ("kind=x", "kind"), ("q=%00", "q")],
)  # fmt: skip
def test_a_filter_that_makes_no_sense_is_named(api: Client, query: str, field: str) -> None:
    for address in ("experiments", "runs") if field != "kind" else ("experiments",):
        response = api.get(f"{API}/{address}/?{query}")
        assert response.status_code == 422
        assert [fault["field"] for fault in response.json()["errors"]] == [field]


@pytest.mark.parametrize("count", [1, 6])
def test_lists_have_a_constant_number_of_queries(
    api: Client, member: User, count: int, django_assert_num_queries: Any
) -> None:
    for _ in range(count):
        done(member)
    api.get(EXPERIMENTS)  # writes when the token was last used
    for address in ("experiments/", "runs/", "machines/"):
        with django_assert_num_queries(2):  # token with its user; the page
            assert api.get(f"{API}/{address}").status_code == 200


def test_runs_carry_their_summaries(api: Client, member: User) -> None:
    row, _ = done(member), done(member)
    found = api.get(f"{API}/runs/?experiment={row.pk}").json()["results"]
    assert [(run["variant"], run["condition"]) for run in found] == [
        ("none", "4×64"), ("gate_up", "4×64"), ("none", "1×16"), ("gate_up", "1×16"),
    ]  # fmt: skip
    assert found[0]["summary"] == row.runs.get(position=3).summary
    assert len(api.get(f"{API}/runs/").json()["results"]) == 8
    assert api.get(f"{API}/runs/?experiment=x").status_code == 422
    assert api.get(f"{API}/runs/?experiment=99999999999999999999").status_code == 422


# Change


def test_cancel_says_whether_it_could(api: Client, member: User) -> None:
    row = put(member)
    assert api.post(f"{EXPERIMENTS}{row.pk}/cancel/").json()["state"] == "canceled"
    response = api.post(f"{EXPERIMENTS}{row.pk}/cancel/")
    assert response.status_code == 409
    assert response.json()["detail"] == f"Experiment {row.pk} is canceled and can't be canceled any more."


def test_again_is_an_experiment_of_its_own(api: Client, member: User) -> None:
    row = done(member)
    response = api.post(f"{EXPERIMENTS}{row.pk}/rerun/")
    assert response.status_code == 201
    again = Experiment.objects.get(pk=response.json()["id"])
    assert again.document == row.document
    assert again.pk != row.pk


def test_a_table_of_kernels_is_run_again_too(api: Client, member: User) -> None:
    row = measured_kernels(member)
    answer = api.post(f"{EXPERIMENTS}{row.pk}/rerun/").json()
    assert (answer["kind"], answer["experiment"]) == ("kernels", row.document)


def test_what_the_verdict_advises_is_queued_once(api: Client, member: User) -> None:
    row = done(member)
    advised = make.experiment(title="With fusion").document()
    row.result["verdict"] = {"advice": [{"experiment": advised}]}
    row.save()
    key = {"Idempotency-Key": "k"}
    answers = [api.post(f"{EXPERIMENTS}{row.pk}/next/0/", headers=key) for _ in range(2)]
    assert [response.status_code for response in answers] == [201, 200]
    assert answers[0].json()["experiment"] == answers[1].json()["experiment"] == advised
    response = api.post(f"{EXPERIMENTS}{row.pk}/next/1/")
    assert (response.status_code, response.json()["detail"]) == (404, "The verdict gives no such advice.")


def patch(api: Client, row: Experiment, words: Any) -> Any:
    return api.patch(f"{EXPERIMENTS}{row.pk}/", json.dumps(words), content_type="application/json")


def test_words_are_changed_and_the_rest_stays(api: Client, member: User) -> None:
    row = put(member)
    assert patch(api, row, {"tags": ["Nightly", "gpu"]}).json()["tags"] == ["nightly", "gpu"]
    answer = patch(api, row, {"notes": "Look."}).json()
    assert (answer["title"], answer["tags"], answer["notes"]) == ("Fusion", ["nightly", "gpu"], "Look.")


@pytest.mark.parametrize(
    ("words", "field"),
    [({"title": "a\nb"}, "title"), ({"title": ""}, "title"), ({"tags": ["a!"]}, "tags"), ({"tags": "a"}, "tags"),
     ({"notes": "x" * 10_001}, "notes"), ({"notes": "\x00"}, "notes"), ({"state": "done"}, "state"), ([], "body")],
)  # fmt: skip
def test_bad_words_are_named(api: Client, member: User, words: Any, field: str) -> None:
    response = patch(api, put(member), words)
    assert response.status_code == 422
    assert [fault["field"] for fault in response.json()["errors"]] == [field]


def test_deleted_is_gone_until_restored(api: Client, member: User) -> None:
    row = put(member)
    assert api.delete(f"{EXPERIMENTS}{row.pk}/").status_code == 204
    assert api.get(f"{EXPERIMENTS}{row.pk}/").status_code == 404
    assert api.post(f"{EXPERIMENTS}{row.pk}/restore/").json()["state"] == "canceled"
    assert api.get(f"{EXPERIMENTS}{row.pk}/").status_code == 200


@pytest.mark.parametrize(("method", "deed"), [("get", ""), ("patch", ""), ("delete", ""), ("get", "result/"),
    ("post", "cancel/"), ("post", "rerun/"), ("post", "restore/")])  # fmt: skip
@pytest.mark.parametrize("pk", [99, 10**30])
def test_what_is_not_there_is_a_problem_too(api: Client, method: str, deed: str, pk: int) -> None:
    response = getattr(api, method)(f"{EXPERIMENTS}{pk}/{deed}")
    assert response.status_code == 404
    assert response["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("address", ["/experiments", "/", "/experiments/x/", "/machines/%0A/kernels/", "/%0A"])
def test_an_unknown_address_is_a_problem_too(api: Client, address: str) -> None:
    response = api.post(f"{API}{address}")
    assert response.status_code == 404
    assert response.json()["detail"] == (
        "Nothing has this address; those that have something end with a slash, and /api/v1/docs/ lists them."
    )


def test_a_fault_of_our_own_is_a_problem_too(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(machines, "pools", broken)
    api.raise_request_exception = False
    response = send(api, make.document())
    assert response.status_code == 500
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["detail"] == "This failed on our side; the server's log says why."


def test_another_method_is_a_problem_too(api: Client) -> None:
    response = api.put(EXPERIMENTS)
    assert response.status_code == 405
    assert response.json()["detail"] == 'Method "PUT" not allowed.'
