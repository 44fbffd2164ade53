"""Tokens and passwords appear in no log, page or export."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from django.test import Client

from tests.webapp.api.conftest import API
from tests.webapp.experiments import make
from webapp.accounts import tokens
from webapp.accounts.models import Role, Scope, User
from webapp.api.models import Once

pytestmark = pytest.mark.django_db

PASSWORD = "correct horse battery staple"


def secret_of(text: str) -> str:
    """The random part of a token, ``moe_prefix_secret``; that may have underscores of its own."""
    return text.split("_", 2)[2]


def test_what_lets_somebody_in_is_written_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    olga = User.objects.create_user("olga", password=PASSWORD, role=Role.ADMIN)
    _, text = tokens.issue(olga, "CI", list(Scope), None)
    program = Client(headers={"authorization": f"Bearer {text}"}, raise_request_exception=False)
    browser = Client()
    browser.post("/sign-in/", {"username": "olga", "password": f"{PASSWORD}!"})
    browser.post("/sign-in/", {"username": "olga", "password": PASSWORD})
    invited = program.post(
        f"{API}/team/invite/", json.dumps({"username": "bert"}), content_type="application/json",
        headers={"Idempotency-Key": "k"},
    ).json()["link"]  # fmt: skip
    answers = [
        program.post(f"{API}/experiments/", json.dumps(make.document(vary=7)), content_type="application/json"),
        program.get(f"{API}/experiments/?state={text}"),  # a slip of the hand: said back to who sent it alone
        *(program.get(f"{API}/{room}/") for room in ("tokens", "team", "deeds", "experiments", "nothing")),
        *(browser.get(page) for page in ("/tokens/", "/team/", "/team/deeds/", "/")),
    ]
    read = [response.text for response in answers if not response.request.get("QUERY_STRING")]
    said = caplog.text + "".join(read) + str(list(Once.objects.values()))
    for secret in (text, secret_of(text), PASSWORD, invited.rstrip("/").rpartition("/")[2]):
        assert secret not in said


@pytest.mark.parametrize("fault", ["webapp.api.team.page", "webapp.accounts.tokens.check"])
def test_not_even_where_something_fails(
    member: User, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    _, text = tokens.issue(member, "CI", list(Scope), None)

    def fail(*args: Any) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(fault, fail)
    program = Client(headers={"authorization": f"Bearer {text}"}, raise_request_exception=False)
    response = program.get(f"{API}/team/")
    assert response.status_code == 500
    assert "no luck" in caplog.text
    assert secret_of(text) not in caplog.text + response.text
