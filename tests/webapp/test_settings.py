"""The settings as an environment makes them, each in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import variables

ROOT = Path(__file__).resolve().parents[2]
SERVERS = {"DATABASE_URL": "postgresql://u:p@h/d", "BROKER_URL": "redis://h"}
#: What docs/operations.md asks a team for.
DOCUMENTED = SERVERS | {
    "SECRET_KEY": "0123456789abcdef" * 4,
    "ALLOWED_HOSTS": "moescope.example.org",
    "MOESCOPE_HTTPS": "true",
}
READ = """
import json, sys
from webapp import settings
print(json.dumps([getattr(settings, name) for name in sys.argv[1:]]))
"""


def run(*arguments, given=SERVERS):
    env = variables.without_ours() | {"MOESCOPE_DATA": "/nowhere"} | given
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def settings(*names, given=SERVERS):
    done = run("-c", READ, *names, given=given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_djangos_deployment_checks_are_clean_with_the_documented_environment():
    done = run("manage.py", "check", "--deploy", "--fail-level", "WARNING", given=DOCUMENTED)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "System check identified no issues (0 silenced).\n"


def test_a_deployment_is_told_what_it_lacks():
    done = run("manage.py", "check", "--deploy", "--fail-level", "ERROR")
    assert done.returncode == 1
    for identity in ("moescope.E005", "moescope.E006", "moescope.W002"):
        assert identity in done.stderr


def test_other_commands_need_no_key():
    assert run("manage.py", "check", "--fail-level", "WARNING").returncode == 0


def test_the_web_server_does_not_start_without_a_key():
    done = run("-c", "import webapp.wsgi")
    assert done.returncode == 1
    assert "moescope.E005" in done.stderr


def test_on_localhost_pages_go_by_plain_http():
    names = ("SECURE_SSL_REDIRECT", "SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SECURE_HSTS_SECONDS",
             "SECURE_PROXY_SSL_HEADER", "MOESCOPE_PROXIES", "ALLOWED_HOSTS", "DEBUG")  # fmt: skip
    local = ["127.0.0.1", "localhost", "[::1]"]
    assert settings(*names) == [False, False, False, 0, None, 0, local, False]


def test_behind_a_proxy_everything_goes_by_https():
    names = ("SECURE_SSL_REDIRECT", "SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SECURE_HSTS_SECONDS",
             "SECURE_PROXY_SSL_HEADER", "MOESCOPE_PROXIES", "CSRF_TRUSTED_ORIGINS")  # fmt: skip
    given = DOCUMENTED | {"CSRF_TRUSTED_ORIGINS": "https://moescope.example.org:8443", "MOESCOPE_HSTS_SECONDS": "60"}
    assert settings(*names, given=given) == [
        True, True, True, 60, ["HTTP_X_FORWARDED_PROTO", "https"], 1, ["https://moescope.example.org:8443"],
    ]  # fmt: skip


def test_a_value_of_the_wrong_type_stops_the_start():
    done = run("-c", "import webapp.settings", given=SERVERS | {"MOESCOPE_PROXIES": "two"})
    assert done.returncode == 1
    assert "two" in done.stderr


@pytest.mark.parametrize("name", ["SECRET_KEY", "DATABASE_URL", "BROKER_URL"])
def test_a_secret_may_come_in_a_file(name, tmp_path):
    file = tmp_path / "secret"
    file.write_text("postgresql://u:secret@h/d\n")
    assert settings(name, given=SERVERS | {f"{name}_FILE": str(file)}) == ["postgresql://u:secret@h/d"]


def test_each_start_without_a_key_makes_one_up_that_deployment_checks_recognise():
    [[first], [second]] = settings("SECRET_KEY"), settings("SECRET_KEY")
    assert first != second
    assert first.startswith("django-insecure-")
