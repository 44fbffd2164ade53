"""A forgotten password."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.tokens import PasswordResetTokenGenerator
from django.core import mail
from django.test import Client

from tests.webapp.experiments.rows import text_of
from webapp.accounts import throttle
from webapp.accounts.models import User

pytestmark = pytest.mark.django_db

NEW = "staple battery horse"


@pytest.fixture
def anna(settings: Any, member: User) -> User:
    settings.EMAIL_URL = "smtp://mail.example"
    member.email = "Anna@x.example"
    member.save()
    return member


def forget(client: Any, email: str = "anna@x.example") -> Any:
    return client.post("/password/forgotten/", {"email": email}, follow=True)


def test_the_sign_in_page_leads_there(client: Any) -> None:
    assert 'href="/password/forgotten/"' in client.get("/sign-in/").text


def test_without_email_it_says_whom_to_ask(client: Any, member: User) -> None:
    assert "Ask an administrator for a new link" in text_of(client.get("/password/forgotten/"))
    assert "Ask an administrator for a new link" in text_of(forget(client))
    assert not mail.outbox


@pytest.mark.parametrize("had_one", [True, False])
def test_a_link_by_email_lets_choose_a_new_one_once(client: Any, anna: User, had_one: bool) -> None:
    if not had_one:
        anna.set_unusable_password()
        anna.save()
    assert "If a member has that address, a link is on its way" in text_of(forget(client))
    [sent] = mail.outbox
    [link] = re.findall(r"http://testserver(/\S+)", sent.body)
    form = client.get(link, follow=True)
    assert form.text.count("<h1") == 1
    assert "At least 10 characters" in form.text
    address = form.redirect_chain[-1][0]
    done = client.post(address, {"new_password1": NEW, "new_password2": NEW}, follow=True)
    assert "Your password is set; sign in with it." in text_of(done)
    assert client.post("/sign-in/", {"username": "anna", "password": NEW}).url == "/"
    client.logout()
    assert "This link no longer works" in text_of(client.get(link, follow=True))


def test_a_link_by_email_ends_after_three_days(client: Any, anna: User, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(client)
    [link] = re.findall(r"http://testserver(/\S+)", mail.outbox[0].body)
    late = datetime.now() + timedelta(days=3, seconds=5)
    monkeypatch.setattr(PasswordResetTokenGenerator, "_now", lambda self: late)
    assert "This link no longer works" in text_of(client.get(link, follow=True))


def test_a_new_password_ends_the_sessions_of_the_old_one(client: Any, anna: User) -> None:
    elsewhere = Client()
    elsewhere.force_login(anna)
    forget(client)
    [link] = re.findall(r"http://testserver(/\S+)", mail.outbox[0].body)
    address = client.get(link, follow=True).redirect_chain[-1][0]
    client.post(address, {"new_password1": NEW, "new_password2": NEW})
    assert elsewhere.get("/").status_code == 302


def test_an_address_that_nobody_has_gets_the_same_answer_and_no_email(client: Any, anna: User) -> None:
    assert text_of(forget(client, "carl@x.example")) == text_of(forget(client, "dora@x.example"))
    assert not mail.outbox


def test_who_is_shut_out_gets_none(client: Any, anna: User) -> None:
    anna.is_active = False
    anna.save()
    forget(client)
    assert not mail.outbox


def test_it_can_not_be_asked_for_too_often(client: Any, anna: User) -> None:
    for _ in range(throttle.MOST_FOR_NAME):
        forget(client)
    assert "Too many tries. Wait 15 minutes, then try again." in text_of(forget(client, "ANNA@x.example"))
    assert len(mail.outbox) == throttle.MOST_FOR_NAME


def test_no_address_is_no_email(client: Any, anna: User) -> None:
    assert "Enter a valid email address." in text_of(forget(client, "nonsense"))
