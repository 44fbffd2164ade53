from datetime import timedelta

import pytest
from django.contrib.auth import get_user
from django.utils import timezone

from webapp.accounts.models import LINK_LIFETIME, SignInLink

pytestmark = pytest.mark.django_db

HOME = "/"
REFUSED = "this one was used, replaced by a newer one, or is too old."


def follow(client, token):
    return client.get(f"/sign-in/{token}/")


class TestByLink:
    def test_a_link_signs_its_user_in(self, client, member):
        response = follow(client, SignInLink.issue(member))
        assert (response.status_code, response.url) == (302, HOME)
        assert get_user(client) == member

    def test_a_link_works_once(self, client, member):
        token = SignInLink.issue(member)
        follow(client, token)
        client.logout()
        response = follow(client, token)
        assert response.status_code == 403
        assert REFUSED in response.text
        assert 'href="/sign-in/"' in response.text
        assert not get_user(client).is_authenticated

    def test_who_is_signed_in_already_is_shown_the_way_home(self, signed_in, member):
        token = SignInLink.issue(member)
        follow(signed_in, token)
        response = follow(signed_in, token)
        assert "You are signed in as anna." in response.text
        assert get_user(signed_in) == member

    def test_a_link_ends_after_a_day(self, client, member, monkeypatch):
        token = SignInLink.issue(member)
        later = timezone.now() + LINK_LIFETIME + timedelta(seconds=1)
        monkeypatch.setattr("webapp.accounts.models.timezone.now", lambda: later)
        assert follow(client, token).status_code == 403

    def test_a_newer_link_ends_the_earlier_one(self, client, member):
        first, second = SignInLink.issue(member), SignInLink.issue(member)
        assert follow(client, first).status_code == 403
        assert follow(client, second).status_code == 302

    def test_an_inactive_user_is_not_let_in(self, client, member):
        token = SignInLink.issue(member)
        member.is_active = False
        member.save()
        assert follow(client, token).status_code == 403

    @pytest.mark.parametrize("token", ["nonsense", "é", "a" * 2000])
    def test_an_unknown_token_is_refused(self, client, token):
        assert follow(client, token).status_code == 403

    def test_a_preview_does_not_use_the_link_up(self, client, member):
        token = SignInLink.issue(member)
        assert client.head(f"/sign-in/{token}/").status_code == 405
        assert follow(client, token).status_code == 302

    def test_only_a_hash_of_the_token_is_kept(self, member):
        token = SignInLink.issue(member)
        assert token not in str(SignInLink.objects.values().get())


class TestByPassword:
    def sign_in(self, client, password="correct horse battery", **more):
        return client.post("/sign-in/", {"username": "anna", "password": password, **more})

    def test_a_member_gets_to_the_page_that_was_asked_for(self, client, member):
        asked = client.get("/password/")
        assert asked.url == "/sign-in/?next=/password/"
        assert self.sign_in(client, next="/password/").url == "/password/"

    def test_without_a_page_in_mind_it_is_the_home_page(self, client, member):
        assert self.sign_in(client).url == HOME

    def test_a_wrong_password_is_said_on_the_page(self, client, member):
        response = self.sign_in(client, password="wrong")
        assert "Please enter a correct username and password." in response.text

    def test_another_site_is_never_the_next_page(self, client, member):
        assert self.sign_in(client, next="https://elsewhere.example/").url == HOME

    def test_who_is_signed_in_needs_no_form(self, signed_in):
        assert signed_in.get("/sign-in/").url == HOME


def test_signing_out_takes_a_post_and_leads_to_the_sign_in_page(signed_in):
    assert signed_in.get("/sign-out/").status_code == 405
    assert signed_in.post("/sign-out/").url == "/sign-in/"
    assert not get_user(signed_in).is_authenticated


def test_an_htmx_request_of_a_stranger_moves_the_whole_page(client):
    headers = {"HX-Request": "true", "HX-Current-URL": "http://testserver/experiments/?state=done"}
    response = client.get("/experiments/", headers=headers)
    assert response.status_code == 200
    assert response.headers["HX-Redirect"] == "/sign-in/?next=/experiments/%3Fstate%3Ddone"
