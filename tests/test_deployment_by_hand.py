"""The team deployment as it runs: the compose file's own commands against a Postgres and a Valkey over TCP.

Docker alone is missing: the servers are those of the wheels, with passwords on the loopback; two workers serve two
pools; the web is behind a proxy that speaks https.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.by_hand import ByHand
from tests.webapp.experiments import make
from tests.webapp.experiments.waiting import wait_until

HOST = "moescope.example.org"
SECRETS = {
    "SECRET_KEY": "0123456789abcdef" * 4,
    "POSTGRES_PASSWORD": "postgres-of-a-test",
    "VALKEY_PASSWORD": "valkey-of-a-test",
    "ALLOWED_HOSTS": HOST,
}
ADMIN, PASSWORD = "olga", "correct horse battery"
#: Celery's own program with the fake measuring program in the place of the real one.
CELERY = f"""
import sys
from webapp.experiments import launch
launch.PROGRAM = ({sys.executable!r}, {str(Path(__file__).with_name("fake_of_pool.py"))!r})
from celery.bin.celery import main
main()
"""


class Browser:
    """Comes through a proxy that has taken the TLS off, and keeps cookies."""

    def __init__(self, port: int, address: str = "203.0.113.1", scheme: str = "https") -> None:
        self.port, self.cookies = port, SimpleCookie()
        self.headers = {"Host": HOST, "X-Forwarded-Proto": scheme, "X-Forwarded-For": address}

    def open(self, path: str, form: dict[str, str] | None = None) -> tuple[http.client.HTTPResponse, str]:
        headers = self.headers | {"Cookie": "; ".join(f"{c.key}={c.value}" for c in self.cookies.values())}
        body = None
        if form is not None:
            headers |= {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"https://{HOST}"}
            body = urlencode(form | {"csrfmiddlewaretoken": self.cookies["csrftoken"].value})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET" if form is None else "POST", path, body, headers)
        response = connection.getresponse()
        text = response.read().decode()
        for header in response.headers.get_all("Set-Cookie", []):
            self.cookies.load(header)
        connection.close()
        return response, text

    def sign_in(self, password: str = PASSWORD) -> http.client.HTTPResponse:
        self.open("/sign-in/")
        return self.open("/sign-in/", {"username": ADMIN, "password": password})[0]


@pytest.fixture(scope="module")
def team() -> Iterator[ByHand]:
    """The whole deployment, up."""
    directory = Path(tempfile.mkdtemp(prefix="m-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        by_hand = ByHand(directory, SECRETS)
        stack.enter_context(by_hand.servers())
        prepared = by_hand.run(by_hand.command("migrate"), like="migrate")
        assert prepared.returncode == 0, prepared.stderr
        for name in ("web", "beat"):
            stack.enter_context(by_hand.running(name))
        for name in ("worker", "worker-cuda"):
            program, *options = by_hand.command(name)
            assert program == "celery"
            stack.enter_context(by_hand.running(name, [sys.executable, "-c", CELERY, *options]))
        for name in ("web", "beat", "worker", "worker-cuda"):
            assert wait_until(lambda name=name: by_hand.is_healthy(name), within_s=120), by_hand.said(name)
        assert wait_until(lambda: len(by_hand.ask("SELECT FROM experiments_machine")) == 2, within_s=120)
        yield by_hand


@pytest.fixture
def visitor(team: ByHand) -> Browser:
    return Browser(team.ports["web"])


@pytest.fixture(scope="module")
def admin(team: ByHand) -> str:
    """The first administrator, as docs/operations.md makes one; here without the questions."""
    command = ["python", "manage.py", "createsuperuser", "--no-input", f"--username={ADMIN}", "--email=o@x.example"]
    assert team.run(command, DJANGO_SUPERUSER_PASSWORD=PASSWORD).returncode == 0
    return ADMIN


def queue(team: ByHand, title: str, *options: str) -> int:
    file = team.directory / "experiment.json"
    file.write_text(json.dumps(make.document(title=title)))
    done = team.run(["python", "manage.py", "bench", str(file), *options])
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def measured_by(team: ByHand, experiment: int) -> tuple[str, str] | None:
    """The pool and the machine that an experiment was done by; None until it is done."""
    rows = team.ask(
        "SELECT e.pool, m.name FROM experiments_experiment e JOIN experiments_machine m ON m.id = e.machine_id"
        f" WHERE e.id = {experiment} AND e.state = 'done'"
    )
    return rows[0] if rows else None


def test_the_migrations_do_not_run_where_a_deployment_lacks_something(team):
    done = team.run(team.command("migrate"), ALLOWED_HOSTS="", SECRET_KEY="")
    assert done.returncode == 1
    assert "moescope.E005" in done.stderr
    assert "moescope.E006" in done.stderr
    assert "Running migrations" not in done.stdout


def test_who_comes_by_http_is_sent_to_https(team):
    response, _ = Browser(team.ports["web"], scheme="http").open("/experiments/")
    assert (response.status, response.headers["Location"]) == (301, f"https://{HOST}/experiments/")


def test_pages_tell_browsers_to_come_by_https_only(visitor):
    response, _ = visitor.open("/sign-in/")
    assert response.headers["Strict-Transport-Security"] == "max-age=31536000; includeSubDomains; preload"
    assert visitor.cookies["csrftoken"]["secure"]


def test_another_host_name_is_refused(team):
    stranger = Browser(team.ports["web"])
    stranger.headers["Host"] = "elsewhere.example"
    assert stranger.open("/sign-in/")[0].status == 400


def test_static_files_come_from_the_web_process(visitor):
    for name in ("moescope/moescope.css", "vendor/htmx.min.js", "vendor/chart.umd.min.js"):
        assert visitor.open(f"/static/{name}")[0].status == 200


def test_the_first_administrator_signs_in(visitor, admin):
    assert visitor.sign_in().status == 302
    assert visitor.cookies["sessionid"]["secure"]
    assert visitor.open("/")[0].status == 200


def test_passwords_are_tried_so_often_and_no_oftener_whichever_process_answers(team, admin):
    attacker = Browser(team.ports["web"], address="203.0.113.66")
    attacker.open("/sign-in/")
    tries = [attacker.open("/sign-in/", {"username": "mallory", "password": f"{n}"})[0].status for n in range(12)]
    assert tries == [200] * 10 + [429] * 2


def test_an_experiment_runs_in_the_pool_that_it_is_addressed_to(team):
    here, there = queue(team, "here"), queue(team, "there", "--pool", "cuda")
    assert wait_until(lambda: measured_by(team, here) == ("cpu", "bench of cpu"), within_s=120)
    assert wait_until(lambda: measured_by(team, there) == ("cuda", "bench of cuda"), within_s=120)


def test_the_form_offers_both_pools_and_queues_in_the_chosen_one(team, visitor, admin):
    visitor.sign_in()
    _, page = visitor.open("/experiments/new/")
    select = re.search(r'<select name="pool".*?</select>', page, re.DOTALL)
    assert select is not None
    assert re.findall(r'value="([^"]+)"', select[0]) == ["cpu", "cuda"]
    form = {"model": "olmoe-1b-7b", "requests": "2", "concurrency": "1", "prompt_tokens": "16", "output_tokens": "2",
            "pool": "cuda", "title": "from the form"}  # fmt: skip
    response, _ = visitor.open("/experiments/new/", form)
    experiment = int(response.headers["Location"].strip("/").rpartition("/")[2])
    assert wait_until(lambda: measured_by(team, experiment) == ("cuda", "bench of cuda"), within_s=120)


def test_a_row_that_no_message_reached_is_found_in_every_pool(team):
    """Beat's sweep reaches a worker, though no pool has the default name."""
    code = """
import django; django.setup()
from tests.webapp.experiments import make
from webapp.experiments import queue
queue.wake = lambda pool: None
print(queue.enqueue(make.experiment(title="silent"), author=None, pool="cuda").pk)
"""
    done = team.run(["python", "-c", code], DJANGO_SETTINGS_MODULE="webapp.settings")
    assert wait_until(lambda: measured_by(team, int(done.stdout)) is not None, within_s=120)


def test_a_dead_loop_is_seen_by_the_age_of_its_file(team):
    """The check that Compose repeats: it is the file's age that tells."""
    sign = Path(team.environment("worker")["MOESCOPE_ALIVE"])
    old = sign.with_suffix(".old")
    assert team.is_healthy("worker")
    sign.rename(old)
    try:
        assert not team.is_healthy("worker")
    finally:
        old.rename(sign)


def test_no_log_holds_a_secret(team):
    for log in team.log.iterdir():
        text = log.read_text(errors="replace")
        assert not [name for name in SECRETS if name != "ALLOWED_HOSTS" and SECRETS[name] in text], log.name
