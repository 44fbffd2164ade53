"""API tokens: shown once, kept as a hash, valid until they are revoked or expire."""

from __future__ import annotations

import re
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from tests.webapp.experiments.rows import text_of
from webapp.accounts import tokens
from webapp.accounts.models import Deed, Scope, Token, User

pytestmark = pytest.mark.django_db


def made(user: User, lifetime: timedelta | None = None) -> tuple[Token, str]:
    return tokens.issue(user, "nightly", [Scope.READ], lifetime)


def test_a_token_lets_its_user_in(member: User) -> None:
    token, text = made(member)
    assert tokens.check(text) == token
    assert tokens.check(text).user == member
    assert text.startswith(f"{token.prefix}_")


def test_only_its_beginning_and_a_hash_are_kept(member: User) -> None:
    _, text = made(member)
    secret = text.split("_", 2)[2]
    assert secret not in str(Token.objects.values().get())
    assert secret not in str(Deed.objects.values())


@pytest.mark.parametrize("text", ["", "moe_", "é", "moe_00000000_" + "x" * 43])
def test_another_text_lets_nobody_in(member: User, text: str) -> None:
    made(member)
    with pytest.raises(tokens.BadToken, match="not known here"):
        tokens.check(text)


def test_a_token_expires(member: User, monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = made(member, timedelta(days=30))
    later = timezone.now() + timedelta(days=30)
    monkeypatch.setattr("webapp.accounts.models.timezone.now", lambda: later)
    with pytest.raises(tokens.BadToken, match=r"^This token is expired\.$"):
        tokens.check(text)


def test_a_revoked_token_lets_nobody_in_and_is_revoked_once(member: User) -> None:
    token, text = made(member)
    tokens.revoke(token, member)
    tokens.revoke(token, member)
    with pytest.raises(tokens.BadToken, match=r"^This token is revoked\.$"):
        tokens.check(text)
    assert Deed.objects.filter(action=Deed.Action.REVOKED_TOKEN).count() == 1


def test_who_is_shut_out_is_not_let_in_by_a_token_either(member: User) -> None:
    _, text = made(member)
    User.objects.update(is_active=False)
    with pytest.raises(tokens.BadToken, match=r"^anna is shut out\.$"):
        tokens.check(text)


def test_its_last_use_is_known_to_the_minute(member: User, django_assert_num_queries: Any) -> None:
    token, text = made(member)
    with django_assert_num_queries(2):
        tokens.check(text)
    with django_assert_num_queries(1):
        tokens.check(text)
    token.refresh_from_db()
    assert token.last_used_at is not None
    long_ago = timezone.now() - timedelta(hours=1)
    Token.objects.update(last_used_at=long_ago)
    tokens.check(text)
    token.refresh_from_db()
    assert token.last_used_at > long_ago


def make_one(client: Any, **changes: str) -> Any:
    return client.post("/tokens/", {"name": "nightly", "may": "run", "days": "30"} | changes)


def test_the_page_shows_a_new_token_once(signed_in: Any) -> None:
    assert "Your tokens will be listed here" in text_of(signed_in.get("/tokens/"))
    response = make_one(signed_in)
    [text] = re.findall(r'<code id="token">([^<]+)</code>', response.text)
    assert "no-store" in response["Cache-Control"]
    token = tokens.check(text)
    assert (token.name, token.scopes) == ("nightly", ["read", "run"])
    assert token.expires_at is not None
    assert abs(token.expires_at - timezone.now() - timedelta(days=30)) < timedelta(minutes=1)
    page = signed_in.get("/tokens/")
    assert text not in page.text
    assert f"nightly {token.prefix} read, run valid until" in text_of(page)


@pytest.mark.parametrize("changes", [{"name": ""}, {"may": "rule"}, {"days": "31"}, {"name": "x" * 101}])
def test_a_bad_wish_makes_none(signed_in: Any, changes: dict[str, str]) -> None:
    assert make_one(signed_in, **changes).status_code == 422
    assert not Token.objects.exists()


def test_a_viewers_token_only_reads(signed_in: Any, member: User) -> None:
    member.role = "viewer"
    member.save()
    assert make_one(signed_in).status_code == 422
    assert make_one(signed_in, may="read", days="0").status_code == 200
    assert Token.objects.get().scopes == ["read"]
    assert "valid for good" in text_of(signed_in.get("/tokens/"))


def test_one_sees_and_revokes_ones_own(signed_in: Any, member: User) -> None:
    bert = User.objects.create_user("bert", role="runner")
    theirs, mine = made(bert)[0], made(member)[0]
    page = text_of(signed_in.get("/tokens/"))
    assert mine.prefix in page
    assert theirs.prefix not in page
    assert signed_in.post(f"/tokens/{theirs.pk}/revoke/").status_code == 403
    assert f"nightly ({mine.prefix}…) is revoked." in text_of(signed_in.post(f"/tokens/{mine.pk}/revoke/", follow=True))


def test_an_administrator_sees_and_revokes_all(signed_in: Any, member: User) -> None:
    member.role = "admin"
    member.save()
    theirs = made(User.objects.create_user("bert"))[0]
    assert f"{theirs.prefix} bert read" in text_of(signed_in.get("/tokens/"))
    signed_in.post(f"/tokens/{theirs.pk}/revoke/")
    assert Token.objects.get().state == "revoked"
    assert str(Deed.objects.latest("pk")) == f"anna revoked the token nightly ({theirs.prefix}…)"


def command(*args: str) -> str:
    out = StringIO()
    call_command("createtoken", *args, stdout=out)
    return out.getvalue().strip()


def test_the_command_prints_a_token(member: User) -> None:
    token = tokens.check(command("anna", "--name", "CI", "--days", "0"))
    assert (token.user, token.name, token.scopes, token.expires_at) == (member, "CI", ["read", "run"], None)
    assert tokens.check(command("anna", "--may", "read")).scopes == ["read"]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["bert"], "USER: 'bert' is not the name of a member who may sign in."),
        (["vera"], "--may: vera is a viewer, whose tokens may only read."),
        (["anna", "--days", "-1"], "--days: -1 is not allowed; it must be 0 to 3,650"),
    ],
)
def test_the_command_says_what_is_wrong(member: User, args: list[str], sentence: str) -> None:
    User.objects.create_user("vera")
    with pytest.raises(CommandError, match=re.escape(sentence)) as caught:
        command(*args)
    assert caught.value.returncode == 2
