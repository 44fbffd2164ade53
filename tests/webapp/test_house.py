"""What holds for every room."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.urls import URLPattern, URLResolver, get_resolver
from django.urls.converters import IntConverter, PathConverter, SlugConverter, StringConverter

from tests.webapp.experiments import rows
from tests.webapp.history.make_nights import day, night, schedule
from tests.webapp.kept import OfKeptMember
from webapp.history import series
from webapp.history.models import Series
from webapp.traces.recording_store import import_recording
from webapp.traces.store import import_trace

ROOT = Path(__file__).resolve().parents[2]
OPEN_TO_STRANGERS = {"/healthz", "/sign-in/", "/sign-in/x/", "/password/forgotten/", "/password/forgotten/x/x/"}
TAKES_FORMS_ONLY = {
    "/sign-out/", "/tokens/1/revoke/", "/experiments/new/plan/",
    *(f"/experiments/1/{action}/" for action in ("cancel", "rerun", "delete", "restore", "next/1")),
    "/history/changes/1/triage/",
    *(f"/schedules/1/{action}/" for action in ("switch", "run", "delete")),
    *(f"/team/1/{action}/" for action in ("role", "link", "shut-out", "take-back")),
    "/traces/requests/x/delete/", "/traces/recordings/x/delete/",
}  # fmt: skip
SAMPLES = {IntConverter: "1", SlugConverter: "x", StringConverter: "x", PathConverter: "x"}


def addresses(resolver=None, prefix="/"):
    """Every address of the site, a sample value in place of each variable part."""
    for entry in (resolver or get_resolver()).url_patterns:
        address = prefix + str(entry.pattern)
        for name, converter in entry.pattern.converters.items():
            address = re.sub(rf"<[^>]*\b{name}>", SAMPLES[type(converter)], address)
        if isinstance(entry, URLResolver):
            yield from addresses(entry, address)
        elif isinstance(entry, URLPattern):
            yield address


def by_token():
    """The addresses of the API, where programs come in by token; tests/webapp/api looks at them."""
    return {a for a in addresses() if a.startswith("/api/")} - {"/api/v1/schema/", "/api/v1/docs/"}


@pytest.mark.django_db
@pytest.mark.parametrize("address", [a for a in addresses() if a not in OPEN_TO_STRANGERS | by_token()])
@pytest.mark.parametrize("method", ["get", "head", "post", "put", "delete", "options"])
def test_a_stranger_is_led_to_the_sign_in_page(client, address, method):
    response = getattr(client, method)(address)
    assert response.status_code == 302
    assert response.url.startswith("/sign-in/")


def test_the_walk_over_the_addresses_finds_them():
    assert {"/", "/experiments/new/", "/experiments/1/", "/machines/1/", "/traces/", "/password/"} <= set(addresses())


@pytest.fixture(scope="class")
def furnished(kept_member, tmp_path_factory):
    """Something to show at every address, to an administrator. Gives the addresses that stand for the samples of the
    walk."""
    kept_member.role = "admin"
    kept_member.save()
    row = rows.done(kept_member)
    folder = tmp_path_factory.mktemp("library")
    (folder / "x.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,6\n")
    import_trace(folder / "x.csv")
    (folder / "x.json").write_text('{"counts": [[2, 1]]}')
    import_recording([folder / "x.json"])
    night(planned := schedule(kept_member), day(0))
    series.follow(day(1))
    first, last = row.runs.order_by("position").first(), row.runs.order_by("position").last()
    return {
        "/experiments/1/": row.get_absolute_url(),
        "/machines/1/": row.machine.get_absolute_url(),
        "/compare/table/": f"/compare/table/?runs={first.pk},{last.pk}",
        "/schedules/1/": f"/schedules/{planned.pk}/",
        "/history/1/": Series.objects.first().get_absolute_url(),
    }


@pytest.mark.django_db
class TestEveryAddress(OfKeptMember):
    @pytest.mark.parametrize("address", [a for a in addresses() if a not in by_token()])
    def test_it_answers_a_member_and_every_page_has_one_heading_and_a_title(self, furnished, signed_in, address):
        expected = 405 if address in TAKES_FORMS_ONLY else 403 if address == "/sign-in/x/" else 200
        for sample, real in furnished.items():
            address = address.replace(sample, real)
        response = signed_in.get(address, follow=True)
        assert response.status_code == expected
        if expected != 405 and response["Content-Type"].startswith("text/html"):
            assert response.text.count("<h1") == 1
            assert re.search(r"<title>\S.* · Moescope</title>", response.text)


@pytest.mark.django_db
def test_every_answer_carries_the_strict_policy(client):
    policy = client.get("/sign-in/").headers["Content-Security-Policy"]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == directives["style-src"] == "'self'"
    assert directives["frame-ancestors"] == directives["base-uri"] == "'none'"
    headers = client.get("/sign-in/").headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "same-origin"


TEMPLATES = sorted(ROOT.glob("webapp/*/templates/**/*.html"))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_template_holds_a_style_or_a_script(template):
    """The policy would block them; here they are found before a browser does."""
    text = template.read_text()
    assert not re.search(r"\sstyle=|<style|\son[a-z]+=|hx-on|javascript:", text)
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)


def test_the_web_process_never_imports_torch():
    code = (
        "import sys, webapp.wsgi; from django.urls import get_resolver; get_resolver().reverse_dict;"
        "heavy = {'torch', 'deepspeed', 'zentorch'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "webapp.settings", "DATABASE_URL": "postgresql://u@h/d", "SECRET_KEY": "x" * 50,
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.django_db
def test_no_model_waits_for_a_migration():
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db
class TestErrors:
    def test_an_unknown_address(self, signed_in):
        response = signed_in.get("/nowhere/")
        assert response.status_code == 404
        assert "No page has this address" in response.text
        assert response.text.count("<h1>") == 1

    def test_a_form_from_before_the_sign_in(self, django_user_model):
        from django.test import Client

        response = Client(enforce_csrf_checks=True).post("/sign-in/", {"username": "a", "password": "b"})
        assert response.status_code == 403
        assert "the form was loaded before you signed in" in response.text

    def test_a_host_name_that_is_not_ours(self, client):
        response = client.get("/sign-in/", headers={"host": "elsewhere.example"})
        assert response.status_code == 400
        assert "This request can't be read" in response.text

    def test_a_fault_of_our_own(self, client, monkeypatch):
        def broken():
            raise RuntimeError("no luck")

        monkeypatch.setattr("webapp.health._ask_database", broken)
        client.raise_request_exception = False
        response = client.get("/healthz")
        assert response.status_code == 500
        assert "This page failed on our side" in response.text
        assert "no luck" not in response.text
