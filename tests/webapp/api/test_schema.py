"""The OpenAPI schema says what the API does: schemathesis sends what it allows, and what it doesn't."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from bench_worker.spec import Experiment
from tests.webapp.api.conftest import API
from tests.webapp.experiments.rows import MACHINE, done, ended, measuring, put
from tests.webapp.history.make_nights import nights, schedule
from webapp.accounts import tokens
from webapp.accounts.models import Role, Scope, User
from webapp.experiments import machines
from webapp.experiments.models import State
from webapp.history.models import Change, Series
from webapp.traces.recording_store import import_recording
from webapp.traces.store import import_trace

pytestmark = pytest.mark.django_db

DOCUMENT: dict[str, Any] = json.loads(json.dumps(SchemaGenerator().get_schema(request=None, public=True)))
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]
EXAMPLES = 8


def test_the_schema_is_valid() -> None:
    validate_schema(DOCUMENT)


def test_an_experiment_is_that_of_the_measuring_program() -> None:
    parts = DOCUMENT["components"]["schemas"]
    ours = Experiment.model_json_schema(ref_template="#/components/schemas/{model}")
    assert parts["Experiment"] == {key: part for key, part in ours.items() if key != "$defs"}
    for name, part in ours["$defs"].items():
        assert parts[name] == part


def test_every_operation_needs_a_token() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            assert operation["security"] == [{"token": []}], f"{method} {path}"


def test_members_read_the_schema_and_its_page(signed_in: Any) -> None:
    assert signed_in.get(f"{API}/schema/", headers={"accept": "application/json"}).json()["info"]["title"] == "Moescope"
    page = signed_in.get(f"{API}/docs/").text
    assert f'data-schema="{API}/schema/"' in page
    assert "//cdn" not in page


@pytest.fixture
def same_connection() -> Iterator[None]:
    """A request over WSGI would end the connection that the test's transaction is on."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.fixture(scope="class")
def known(kept_member: User, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int | str]]:
    """Something of every kind that addresses can ask for: keys or names, by the address's first word."""
    member, folder = kept_member, tmp_path_factory.mktemp("library")
    nights(planned := schedule(member), 0, 12, from_night=7, step_us=1.5)
    runs = [run.pk for run in done(member).runs.all()]
    (folder / "day.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,6\n")
    (folder / "load.json").write_text('{"counts": [[2, 1]]}')
    return {
        "experiments": [put(member).pk, measuring(member).pk, done(member).pk, ended(put(member), State.CANCELED).pk],
        "runs": runs,
        "compare": runs,
        "machines": [machines.register_this(MACHINE, "default").pk],
        "schedules": [planned.pk],
        "series": [row.pk for row in Series.objects.all()],
        "changes": [row.pk for row in Change.objects.all()],
        "team": [member.pk, User.objects.create_user("bert").pk],
        "tokens": [tokens.issue(member, "theirs", list(Scope), None)[0].pk],
        "traces": [import_trace(folder / "day.csv", by=member)[0].name],
        "recordings": [import_recording([folder / "load.json"], by=member)[0].name],
    }


class TestRequests:
    @pytest.mark.usefixtures("same_connection")
    @pytest.mark.parametrize("mode", GenerationMode)
    @pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
    def test_no_request_meets_a_fault_or_an_undocumented_answer(
        self, operation: Any, mode: GenerationMode, known: dict[str, list[int | str]]
    ) -> None:
        room = operation.path.removeprefix(f"{API}/").partition("/")[0]
        _, token = tokens.issue(User.objects.create_user("olga", role=Role.ADMIN), "test", list(Scope), None)
        keys = st.one_of(st.none(), st.sampled_from(known[room])) if room in known else st.none()

        @settings(
            max_examples=EXAMPLES, deadline=None, phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck), derandomize=True, database=None,
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode), key=keys)
        def send(case: Any, key: int | str | None) -> None:
            for name in {"id", "name"} & set(case.path_parameters or {}) if key is not None else ():
                case.path_parameters[name] = key
            if mode == GenerationMode.POSITIVE or key is not None:
                case.headers = {**(case.headers or {}), "Authorization": f"Bearer {token}"}
            response = case.call(base_url="http://localhost", app=WSGIHandler())
            assert response.status_code < 500
            documented = operation.definition.raw["responses"]
            assert str(response.status_code) in documented, response.text
            if response.status_code != 204:
                kinds = documented[str(response.status_code)]["content"]
                assert response.headers["content-type"][0].partition(";")[0] in kinds

        send()
