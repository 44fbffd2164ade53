"""The team, its tokens and who did what, over the API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from tests.webapp.api.conftest import API, client_of
from webapp.accounts import tokens
from webapp.accounts.models import Deed, Role, Scope, Token, User

pytestmark = pytest.mark.django_db

TEAM = f"{API}/team/"


@pytest.fixture
def olga() -> User:
    return User.objects.create_user("olga", email="olga@x.example", role=Role.ADMIN)


@pytest.fixture
def admin(olga: User) -> Client:
    return client_of(olga)


def post(program: Client, path: str, document: Any = None, **headers: str) -> Any:
    data = "" if document is None else json.dumps(document)
    return program.post(f"{API}/{path}", data, content_type="application/json", headers=headers)


def deeds() -> list[str]:
    return [str(deed) for deed in Deed.objects.exclude(action="made the token").order_by("id")]


def test_the_team_is_listed_and_addresses_only_to_administrators(api: Client, admin: Client, olga: User) -> None:
    [theirs, own] = admin.get(TEAM).json()["results"]
    assert (theirs["username"], theirs["role"], theirs["email"]) == ("olga", "admin", "olga@x.example")
    assert (own["username"], own["role"], own["is_active"], own["last_login"]) == ("anna", "runner", True, None)
    assert {one["email"] for one in api.get(TEAM).json()["results"]} == {None}


def test_who_is_invited_comes_in_by_the_link_once(admin: Client, client: Client) -> None:
    asked, key = {"username": "bert", "role": "viewer"}, {"Idempotency-Key": "k"}
    response = post(admin, "team/invite/", asked, **key)
    assert response.status_code == 201
    answer = response.json()
    assert (answer["member"]["username"], answer["member"]["role"], answer["sent"]) == ("bert", "viewer", False)
    again = post(admin, "team/invite/", asked, **key)
    assert (again.status_code, again.json()["link"]) == (200, None)
    assert client.get(answer["link"]).url == "/"
    assert client.get(answer["link"]).status_code == 403
    assert deeds() == ["olga invited bert"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [({"username": ""}, "username"), ({"username": "a b"}, "username"), ({"username": "anna"}, "username"),
     ({"username": "\x00"}, "username"), ({"username": "b", "email": "no"}, "email"),
     ({"username": "b", "role": "owner"}, "role"), ({}, "username"), ({"username": "b", "password": "x"}, "password")],
)  # fmt: skip
def test_a_bad_invitation_names_the_field(admin: Client, member: User, asked: Any, field: str) -> None:
    response = post(admin, "team/invite/", asked)
    assert response.status_code == 422
    assert [fault["field"] for fault in response.json()["errors"]] == [field]
    assert not User.objects.exclude(username__in=("anna", "olga")).exists()


def test_a_new_link_ends_the_one_before(admin: Client, member: User, client: Client) -> None:
    first, second = (post(admin, f"team/{member.pk}/link/").json()["link"] for _ in range(2))
    assert client.get(first).status_code == 403
    assert client.get(second).url == "/"
    assert deeds() == ["olga gave a new link to anna"] * 2


def test_a_role_is_given_by_somebody_else(admin: Client, olga: User, member: User) -> None:
    for _ in range(2):
        assert post(admin, f"team/{member.pk}/role/", {"role": "viewer"}).json()["role"] == "viewer"
    assert deeds() == ["olga made a viewer anna"]
    response = post(admin, f"team/{olga.pk}/role/", {"role": "viewer"})
    assert response.status_code == 403
    assert response.json()["detail"] == "Another administrator has to change that for you."
    assert post(admin, f"team/{member.pk}/role/", {"role": "owner"}).status_code == 422


def test_who_is_shut_out_is_out_at_once_until_taken_back(api: Client, admin: Client, member: User) -> None:
    assert post(admin, f"team/{member.pk}/shut-out/").json()["is_active"] is False
    response = api.get(TEAM)
    assert (response.status_code, response.json()["detail"]) == (401, "anna is shut out.")
    response = post(admin, f"team/{member.pk}/link/")
    assert (response.status_code, response.json()["detail"]) == (403, "anna is shut out; let them in again first.")
    assert post(admin, f"team/{member.pk}/take-back/").json()["is_active"] is True
    assert api.get(TEAM).status_code == 200


def test_who_did_what_is_listed(admin: Client, member: User) -> None:
    post(admin, f"team/{member.pk}/role/", {"role": "viewer"})
    [latest, *_] = admin.get(f"{API}/deeds/").json()["results"]
    assert (latest["member"], latest["action"], latest["subject"]) == ("olga", "made a viewer", "anna")


def test_tokens_are_listed_without_their_secrets(api: Client, admin: Client) -> None:
    response = api.get(f"{API}/tokens/")
    [own] = response.json()["results"]
    assert (own["name"], own["user"], own["scopes"], own["state"]) == ("test", "anna", ["read", "run"], "valid")
    assert Token.objects.get(user__username="anna").token_hash not in response.text
    assert len(admin.get(f"{API}/tokens/").json()["results"]) == 2


def test_one_revokes_ones_own_and_an_administrator_everybodys(api: Client, admin: Client, member: User) -> None:
    theirs = Token.objects.get(user__username="olga")
    response = post(api, f"tokens/{theirs.pk}/revoke/")
    assert response.status_code == 403
    assert response.json()["detail"] == "Only olga or an administrator may revoke this token."
    other, _ = tokens.issue(member, "other", [Scope.READ], None)
    assert post(api, f"tokens/{other.pk}/revoke/").json()["state"] == "revoked"
    assert post(admin, f"tokens/{Token.objects.get(name='test', user=member).pk}/revoke/").status_code == 200
    assert api.get(TEAM).json()["detail"] == "This token is revoked."


def test_no_address_makes_a_token(admin: Client) -> None:
    assert post(admin, "tokens/", {"name": "x"}).status_code == 405
