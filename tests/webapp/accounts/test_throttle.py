"""Passwords can't be tried without end, and nobody is shut out for long."""

from datetime import timedelta

import pytest
from django.contrib.auth import get_user
from django.utils import timezone

from webapp.accounts import throttle
from webapp.accounts.models import SignInLink, SignInTry

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"
NAME, ADDRESS = throttle.MOST_FOR_NAME, throttle.MOST_FROM_ADDRESS


def sign_in(client, username="anna", password="wrong", address="192.0.2.1"):
    return client.post("/sign-in/", {"username": username, "password": password}, REMOTE_ADDR=address)


def tries(number, name="anna", address="192.0.2.1", ago=timedelta(0)):
    SignInTry.objects.bulk_create(SignInTry(name=name, address=address, at=timezone.now() - ago) for _ in range(number))


def test_the_last_try_that_counts_is_let_through_and_the_next_is_not(client, member):
    tries(NAME - 1)
    assert "correct username" in sign_in(client).text
    response = sign_in(client, password=PASSWORD)
    assert response.status_code == 429
    assert "Too many tries. Wait 15 minutes, then try again." in response.text
    assert 890 < int(response["Retry-After"]) <= 900
    assert not get_user(client).is_authenticated


def test_trying_on_does_not_lengthen_the_wait(client, member):
    tries(NAME, ago=timedelta(minutes=14, seconds=30))
    assert "Wait 1 minute, then" in sign_in(client).text
    assert SignInTry.objects.count() == NAME


def test_after_a_quarter_of_an_hour_it_is_forgotten(client, member):
    tries(NAME, ago=throttle.WINDOW)
    assert sign_in(client, password=PASSWORD).status_code == 302
    assert not SignInTry.objects.exists()


def test_a_right_password_ends_the_count(client, member):
    tries(NAME - 1)
    sign_in(client, password=PASSWORD)
    client.logout()
    assert sign_in(client).status_code == 200
    assert SignInTry.objects.count() == 1


def test_one_name_is_guarded_from_all_addresses_and_others_go_on(client, member, django_user_model):
    django_user_model.objects.create_user("bert", password=PASSWORD)
    for n in range(NAME):
        tries(1, address=f"192.0.2.{n + 10}")
    assert sign_in(client, address="192.0.2.99").status_code == 429
    assert sign_in(client, "bert", PASSWORD).status_code == 302


def test_one_address_that_tries_many_names_is_stopped_and_other_addresses_go_on(client, member):
    for n in range(ADDRESS):
        tries(1, name=f"name{n}")
    assert sign_in(client).status_code == 429
    assert sign_in(client, password=PASSWORD, address="192.0.2.2").status_code == 302


def test_a_link_lets_its_user_in_all_the_while(client, member):
    tries(NAME)
    assert sign_in(client, password=PASSWORD).status_code == 429
    client.get(f"/sign-in/{SignInLink.issue(member)}/")
    assert get_user(client) == member


def test_a_name_that_no_one_has_counts_the_same(client):
    tries(NAME, name="nobody")
    assert sign_in(client, "nobody").status_code == 429


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_name_that_can_be_none_is_refused_without_a_count(client, name):
    assert sign_in(client, name).status_code == 200
    assert not SignInTry.objects.exists()


def test_a_name_longer_than_any_account_has_counts_too(client):
    tries(NAME, name="x" * throttle.MAX_NAME)
    assert sign_in(client, "x" * 2000).status_code == 429


@pytest.mark.parametrize(
    ("proxies", "forwarded", "expected"),
    [
        (0, "203.0.113.9", "192.0.2.1"),  # anyone can write the header where no proxy does
        (1, "198.51.100.7, 203.0.113.9", "203.0.113.9"),
        (2, "198.51.100.7, 203.0.113.9", "198.51.100.7"),
        (3, "198.51.100.7, 203.0.113.9", "192.0.2.1"),
        (1, "", None),
        (1, "nonsense", None),
        (1, "2001:db8::1", "2001:db8::1"),
    ],
)
def test_the_address_is_what_our_own_proxies_saw(rf, settings, proxies, forwarded, expected):
    settings.MOESCOPE_PROXIES = proxies
    request = rf.get("/", REMOTE_ADDR="192.0.2.1", HTTP_X_FORWARDED_FOR=forwarded)
    assert throttle.address_of(request) == expected


def test_an_address_that_is_not_known_is_not_counted_as_one(client, member):
    for n in range(ADDRESS):
        tries(1, name=f"name{n}", address=None)
    assert sign_in(client, address="").status_code == 200
