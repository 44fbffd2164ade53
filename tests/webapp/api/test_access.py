"""Who gets in: at every address, with every role and scope."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from tests.webapp.api.conftest import API, client_of
from tests.webapp.experiments.rows import put
from tests.webapp.test_house import by_token
from webapp.accounts import tokens
from webapp.accounts.models import Role, Scope, Token, User
from webapp.experiments.models import Experiment

pytestmark = pytest.mark.django_db

ADDRESSES = sorted(by_token())
WRITES = ("post", "put", "patch", "delete")
#: Where an address takes something else than a viewer to read and a runner to change, whatever the method.
NEEDS = {
    f"{API}/deeds/": Role.ADMIN,
    f"{API}/tokens/1/revoke/": Role.VIEWER,
    f"{API}/team/invite/": Role.ADMIN,
    **{f"{API}/team/1/{deed}/": Role.ADMIN for deed in ("role", "link", "shut-out", "take-back")},
}


def test_the_walk_over_the_addresses_finds_them() -> None:
    assert {f"{API}/experiments/", f"{API}/experiments/1/cancel/", f"{API}/runs/", *NEEDS} <= set(ADDRESSES)


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("method", ["get", *WRITES])
def test_without_a_token_nobody_gets_in(client: Any, signed_in: Any, address: str, method: str) -> None:
    for stranger in (Client(), signed_in):  # a browser's session counts for nothing here
        response = getattr(stranger, method)(address)
        assert response.status_code == 401
        assert response["WWW-Authenticate"] == "Bearer"
        assert response["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_role_may_over_the_api_what_it_may_on_the_pages(address: str, role: Role) -> None:
    user = User.objects.create_user("carl", role=role)
    program = client_of(user)
    for method in ("get", "head", *WRITES):
        usual = Role.VIEWER if method in ("get", "head") else Role.RUNNER
        may = user.is_at_least(NEEDS.get(address, usual))
        assert (getattr(program, method)(address).status_code != 403) == may, method


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_token_may_what_its_scope_says(address: str, scope: Scope) -> None:
    program = client_of(User.objects.create_user("olga", role=Role.ADMIN), scope)
    for method in ("get", *WRITES):
        may = scope == (Scope.READ if method == "get" else Scope.RUN)
        assert (getattr(program, method)(address).status_code != 403) == may, method


def test_refusals_are_sentences(member: User) -> None:
    program = client_of(member, Scope.READ)
    assert program.post(f"{API}/experiments/").json()["detail"] == (
        "This takes a token with the scope run; yours has read."
    )
    viewer = client_of(User.objects.create_user("vera", role=Role.VIEWER))
    assert viewer.post(f"{API}/experiments/").json()["detail"] == "This takes a runner; you are a viewer."


@pytest.mark.parametrize("word", ["revoked", "expired"])
def test_a_token_that_ended_reads_nothing(member: User, word: str) -> None:
    token, text = tokens.issue(member, "test", [Scope.READ], timedelta(days=-1) if word == "expired" else None)
    if word == "revoked":
        tokens.revoke(token, member)
    response = Client(headers={"authorization": f"Bearer {text}"}).get(f"{API}/experiments/")
    assert response.status_code == 401
    assert response.json()["detail"] == f"This token is {word}."
    assert Token.objects.get().last_used_at is None


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer x y", "Basic YTpi", "bearer \xff", "Bearer " + "x" * 5000])
def test_another_header_lets_nobody_in(header: str) -> None:
    assert Client(headers={"authorization": header}).get(f"{API}/runs/").status_code == 401


@pytest.mark.parametrize(("method", "deed"), [("delete", ""), ("patch", ""), ("post", "cancel/"), ("post", "restore/")])
def test_a_runner_changes_only_what_is_their_own(api: Client, method: str, deed: str) -> None:
    row = put(User.objects.create_user("bert", role=Role.RUNNER))
    response = getattr(api, method)(f"{API}/experiments/{row.pk}/{deed}", data="{}", content_type="application/json")
    assert response.status_code == 403
    assert response.json()["detail"] == "Only bert or an administrator may change this."
    assert Experiment.objects.get().state == "queued"
