"""Traces and recordings, over the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import resolve

from tests.webapp.api.conftest import API, client_of
from tests.webapp.experiments import make
from webapp.accounts.models import Deed, Role, Scope, User
from webapp.experiments import queue
from webapp.traces.models import Recording, Trace
from webapp.traces.store import import_trace
from webapp.traces.uploads import MAX_RECORDING_BYTES, MAX_TRACE_BYTES

pytestmark = pytest.mark.django_db

TRACES, RECORDINGS = f"{API}/traces/", f"{API}/recordings/"
CSV = "arrival_s,prompt_tokens,output_tokens\n0.0,5,6\n1.5,7,8\n"
COUNTS = '{"counts": [[2, 1], [0, 3]]}'


def send(api: Client, address: str, *texts: str | bytes, name: str = "day.csv", **fields: Any) -> Any:
    files = [SimpleUploadedFile(name, text if isinstance(text, bytes) else text.encode()) for text in texts]
    return api.post(address, {"file": files, **fields})


def faults(response: Any) -> list[tuple[str, str]]:
    assert response.status_code == 422
    assert response["Content-Type"] == "application/problem+json"
    return [(fault["field"], fault["message"]) for fault in response.json()["errors"]]


def test_a_trace_is_imported_as_on_the_page(api: Client, member: User) -> None:
    response = send(api, TRACES, CSV)
    assert response.status_code == 201
    answer, trace = response.json(), Trace.objects.get()
    assert (answer["name"], answer["author"], answer["num_requests"], answer["span_s"]) == ("day", "anna", 2, 1.5)
    assert (answer["total_prompt_tokens"], answer["uses"], answer["url"]) == (12, 0, trace.get_absolute_url())
    assert trace.created_by == member
    assert answer == api.get(f"{TRACES}day/").json() == api.get(TRACES).json()["results"][0]
    assert api.get(f"{TRACES}day/file/", headers={"accept": "text/csv"}).getvalue().decode() == CSV


def test_the_same_content_is_stored_once(api: Client) -> None:
    send(api, TRACES, CSV)
    response = send(api, TRACES, CSV, name="other.csv")
    assert (response.status_code, response.json()["name"]) == (200, "day")
    assert Trace.objects.count() == 1


def test_name_and_number_of_requests_are_the_forms(api: Client) -> None:
    answer = send(api, TRACES, CSV, **{"first": 1}, name="x.csv").json()
    assert (answer["name"], answer["num_requests"]) == ("x", 1)


def test_a_recording_is_imported_as_on_the_page(api: Client) -> None:
    response = send(api, RECORDINGS, COUNTS, name="load.json", experts=3)
    assert response.status_code == 201
    answer = response.json()
    assert (answer["name"], answer["layers"], answer["num_experts"], answer["top_k"]) == ("load", [0, 1], 3, None)
    assert answer["imbalance"] == pytest.approx([2.0, 3.0])
    assert answer == api.get(f"{RECORDINGS}load/").json() == api.get(RECORDINGS).json()["results"][0]
    assert api.get(f"{RECORDINGS}load/file/").content == bytes(Recording.objects.get().content)
    assert send(api, RECORDINGS, COUNTS, name="load.json", experts=3).status_code == 200


@pytest.mark.parametrize(
    ("text", "fields", "field", "says"),
    [
        ("no header\n", {}, "file", "day.csv"),
        ("", {}, "file", "day.csv"),
        (b"\xff\x00", {}, "file", "day.csv"),
        (CSV, {"first": 0}, "first", "1"),
        (CSV, {"first": "ten"}, "first", "whole number"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_in_a_sentence(
    api: Client, text: str, fields: dict[str, Any], field: str, says: str
) -> None:
    [(named, message)] = faults(send(api, TRACES, text, **fields))
    assert named == field
    assert says in message
    assert not Trace.objects.exists()


def test_a_name_that_is_taken_is_refused(api: Client) -> None:
    send(api, TRACES, CSV)
    [(field, message)] = faults(
        api.post(TRACES, {"file": SimpleUploadedFile("a", CSV.encode() + b"9,9,9\n"), "name": "day"})
    )
    assert (field, message) == ("name", "'day' is taken by another trace; give this one another name")


def test_a_recording_that_is_none_is_refused_in_a_sentence(api: Client) -> None:
    [(field, message)] = faults(send(api, RECORDINGS, "{}", name="load.json"))
    assert field == "file"
    assert message.startswith("load.json: ")


@pytest.mark.parametrize("address", [TRACES, RECORDINGS])
def test_no_file_is_refused(api: Client, address: str) -> None:
    assert faults(api.post(address, {"name": "x"})) == [("file", "Choose a file.")]
    assert faults(api.post(address)) == [("file", "Choose a file.")]


def test_a_body_of_another_kind_is_refused(api: Client) -> None:
    response = api.post(TRACES, CSV, content_type="text/csv")
    assert response.status_code == 415
    assert response.json()["detail"] == 'Unsupported media type "text/csv" in request.'
    [(field, _)] = faults(api.post(TRACES, b"x", content_type="multipart/form-data"))
    assert field == "body"


@pytest.mark.parametrize(
    ("address", "limit"), [(TRACES, MAX_TRACE_BYTES), (RECORDINGS, MAX_RECORDING_BYTES), (f"{API}/experiments/", None)]
)
def test_a_larger_body_is_refused(
    api: Client, monkeypatch: pytest.MonkeyPatch, address: str, limit: int | None
) -> None:
    view = resolve(address).func
    assert getattr(view, "max_body_bytes", None) == limit
    if limit is not None:
        monkeypatch.setattr(view, "max_body_bytes", 1_000_000)
    response = api.post(address, b"x" * 1_000_001, content_type="multipart/form-data; boundary=b")
    assert response.status_code == 413
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["detail"] == "The request has 1,000,001 bytes; at most 1,000,000 are accepted."


def test_a_large_file_is_read_from_disk(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def keep(path: Path, *args: Any) -> Any:
        seen.append(path.resolve())
        return import_trace(path, *args)

    monkeypatch.setattr("webapp.traces.uploads.store.import_trace", keep)
    rows = "".join(f"{number},{number % 50 + 1},6\n" for number in range(150_000))
    response = send(api, TRACES, f"{CSV.splitlines()[0]}\n{rows}", name="long.csv")
    assert (response.status_code, response.json()["num_requests"]) == (201, 150_000)
    assert len(rows) > 1_000_000
    assert ".upload" in seen[0].name  # a temporary file, which is gone by now
    assert not seen[0].exists()


@pytest.mark.parametrize("who", ["stranger", "viewer", "reader"])
def test_who_may_not_import_is_told_so_whatever_the_size(member: User, who: str) -> None:
    program, status = {
        "stranger": (Client(), 401),
        "viewer": (client_of(User.objects.create_user("vera", role=Role.VIEWER)), 403),
        "reader": (client_of(member, Scope.READ), 403),
    }[who]
    text = CSV + "9,9,9\n" * 200_000
    assert send(program, TRACES, text).status_code == status
    assert not Trace.objects.exists()


def test_it_is_deleted_by_who_imported_it_unless_an_experiment_names_it(api: Client, member: User) -> None:
    send(api, TRACES, CSV)
    bert = client_of(User.objects.create_user("bert", role=Role.RUNNER))
    assert bert.delete(f"{TRACES}day/").json()["detail"] == "Only anna or an administrator may change this."
    base = {"model": "olmoe-1b-7b", "workload": {"trace": "day", "requests": 2}}
    asked = make.experiment(frozenset({"day"}), base=base, vary=None, conditions=[])
    row = queue.enqueue(asked, author=member)
    assert api.get(f"{TRACES}day/").json()["uses"] == 1
    response = api.delete(f"{TRACES}day/")
    assert response.status_code == 409
    assert response.json()["detail"] == "day stays: an experiment names it."
    row.delete()
    assert api.delete(f"{TRACES}day/").status_code == 204
    assert api.get(f"{TRACES}day/").status_code == 404
    assert Deed.objects.filter(action="deleted", subject="day").count() == 1
