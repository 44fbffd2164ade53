"""The team's page: invitations, roles, who is shut out, and who did what."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user
from django.core import mail
from django.utils import timezone

from tests.webapp.experiments.rows import put, text_of
from webapp.accounts.models import Deed, Role, SignInLink, User

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(client: Any) -> User:
    user = User.objects.create_superuser("olga")
    client.force_login(user)
    return user


@pytest.fixture
def with_mail(settings: Any) -> None:
    settings.EMAIL_URL = "smtp://mail.example"


def invite(client: Any, **changes: str) -> Any:
    return client.post("/team/invite/", {"username": "bert", "email": "", "role": "runner"} | changes)


def link_in(response: Any) -> str:
    [link] = re.findall(r'<code id="link">http://testserver(/sign-in/[^<]+)</code>', response.text)
    return link


def deeds() -> list[str]:
    return [str(deed) for deed in Deed.objects.order_by("id")]


def test_everyone_sees_who_belongs_to_the_team(signed_in: Any) -> None:
    text = text_of(signed_in.get("/team/"))
    assert "anna you runner" in text
    assert "Invite somebody" not in text


def test_a_superuser_of_the_command_line_is_an_administrator(admin: User) -> None:
    assert admin.role == Role.ADMIN


def test_who_is_invited_comes_in_by_the_link_and_chooses_a_password(client: Any, admin: User) -> None:
    response = invite(client, role="viewer")
    assert "This link lets bert in, once, within 7 days. Send it to them: it is shown only now." in text_of(response)
    assert "no-store" in response["Cache-Control"]
    link = link_in(response)
    assert client.get("/team/").text.count("/sign-in/") == 0
    client.logout()
    assert client.get(link).url == "/"
    bert = get_user(client)
    assert (bert.get_username(), bert.role, bert.has_usable_password()) == ("bert", "viewer", False)
    assert client.get(link).status_code == 403
    assert deeds() == ["olga invited bert"]


def test_an_invitation_ends_after_a_week(client: Any, admin: User, monkeypatch: pytest.MonkeyPatch) -> None:
    link = link_in(invite(client))
    client.logout()
    later = timezone.now() + timedelta(days=7, seconds=1)
    monkeypatch.setattr(timezone, "now", lambda: later)
    assert client.get(link).status_code == 403
    assert not get_user(client).is_authenticated


def test_an_invitation_goes_by_email_where_that_is_set_up(client: Any, admin: User, with_mail: None) -> None:
    response = invite(client, email="bert@x.example")
    assert "It went to bert@x.example." in text_of(response)
    [sent] = mail.outbox
    assert sent.to == ["bert@x.example"]
    assert f"http://testserver{link_in(response)}" in sent.body


def test_a_mail_server_that_is_away_leaves_the_link(
    client: Any, admin: User, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.EMAIL_URL, settings.EMAIL_BACKEND = "smtp://…", "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    response = invite(client, email="bert@x.example")
    assert "Send it to them" in text_of(response)
    token = link_in(response).split("/")[2]
    assert "Connection refused" in caplog.text
    assert token not in caplog.text


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"username": "olga"}, "A user with that username already exists."),
        ({"username": ""}, "This field is required."),
        ({"username": "b ert"}, "Enter a valid username."),
        ({"email": "nowhere"}, "Enter a valid email address."),
        ({"role": "king"}, "Select a valid choice. king is not one of the available choices."),
    ],
)
def test_a_bad_invitation_says_what_is_wrong(client: Any, admin: User, changes: dict[str, str], sentence: str) -> None:
    response = invite(client, **changes)
    assert response.status_code == 422
    assert sentence in text_of(response)
    assert User.objects.count() == 1


def test_a_role_is_changed(client: Any, admin: User, member: User) -> None:
    assert "anna is an administrator now." in text_of(
        client.post(f"/team/{member.pk}/role/", {"role": "admin"}, follow=True)
    )
    client.post(f"/team/{member.pk}/role/", {"role": "admin"})  # nothing changes
    member.refresh_from_db()
    assert member.role == "admin"
    assert deeds() == ["olga made an administrator anna"]


def test_an_unknown_role_is_refused(client: Any, admin: User, member: User) -> None:
    response = client.post(f"/team/{member.pk}/role/", {"role": "king"}, follow=True)
    assert "Not changed: 'king' is not one of viewer, runner, admin." in text_of(response)
    member.refresh_from_db()
    assert member.role == "runner"


@pytest.mark.parametrize("deed", ["role", "link", "shut-out", "take-back"])
def test_nobody_changes_themselves_so_an_administrator_is_always_left(client: Any, admin: User, deed: str) -> None:
    response = client.post(f"/team/{admin.pk}/{deed}/", {"role": "viewer"})
    assert response.status_code == 403
    assert "Another administrator has to change that for you." in text_of(response)


def test_who_is_shut_out_is_out_at_once_until_taken_back(client: Any, admin: User, member: User) -> None:
    from django.test import Client

    theirs = Client()
    theirs.force_login(member)
    token = SignInLink.issue(member)
    assert "anna is shut out." in text_of(client.post(f"/team/{member.pk}/shut-out/", follow=True))
    assert theirs.get("/").url.startswith("/sign-in/")
    assert theirs.get(f"/sign-in/{token}/").status_code == 403
    assert client.post(f"/team/{member.pk}/link/").status_code == 403
    assert "anna may sign in again." in text_of(client.post(f"/team/{member.pk}/take-back/", follow=True))
    link = link_in(client.post(f"/team/{member.pk}/link/"))
    assert theirs.get(link).url == "/"
    assert deeds() == ["olga shut out anna", "olga took back anna", "olga gave a new link to anna"]


def test_the_audit_list_says_who_did_what(client: Any, admin: User, no_broker: None) -> None:
    assert "will be listed here" in text_of(client.get("/team/deeds/"))
    row = put(admin)
    address = row.get_absolute_url()
    client.post(f"{address}describe/", {"title": "Other", "tags": "", "notes": ""})
    client.post(f"{address}cancel/")
    client.post(f"{address}cancel/")  # nothing happens
    client.post(f"{address}delete/")
    client.post(f"{address}restore/")
    client.post(f"{address}restore/")  # nothing happens
    number = f"(#{row.pk})"
    said = [f"olga {what} {title} {number}" for what, title in (
        ("queued", "Fusion"), ("changed", "Fusion"), ("canceled", "Other"), ("deleted", "Other"),
        ("brought back", "Other"),
    )]  # fmt: skip
    assert deeds() == said
    page = client.get("/team/deeds/")
    assert text_of(page).index("brought back") < text_of(page).index("queued Fusion")
    assert f'<a href="{address}">' in page.text


def test_a_deed_outlives_its_member(client: Any, admin: User, member: User) -> None:
    client.post(f"/team/{member.pk}/role/", {"role": "viewer"})
    admin.delete()
    assert deeds() == ["olga made a viewer anna"]


@pytest.mark.parametrize("count", [1, 20])
def test_the_pages_have_a_constant_number_of_queries(
    client: Any, admin: User, count: int, django_assert_num_queries: Any
) -> None:
    for number in range(count):
        invite(client, username=f"b{number}")
    with django_assert_num_queries(3):  # session, user; members
        client.get("/team/")
    with django_assert_num_queries(4):  # session, user; count, deeds
        client.get("/team/deeds/")
