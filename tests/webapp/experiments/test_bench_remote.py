"""``manage.py bench --server``: a pipeline's door, against the product itself and against servers that misbehave."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
import threading
import urllib.error
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from bench_worker.findings import Change, Comparison, RunComparison
from bench_worker.result import Result
from tests.webapp.experiments import make
from webapp.accounts import tokens
from webapp.accounts.models import Scope, User
from webapp.experiments.management import remote
from webapp.experiments.models import Experiment, State

pytestmark = pytest.mark.usefixtures("no_broker")

TOKEN = "moe_00000000_secret"
ROOT = Path(__file__).resolve().parents[3]


def comparison(verdict: Change, ratio: float = 1.081, condition: str | None = "1×16") -> dict[str, Any]:
    step = Comparison(ratio=ratio, ci95=(ratio - 0.01, ratio + 0.01), samples=40, verdict=verdict)
    compared = RunComparison(base="gate_up", contender="none", condition=condition, quantities={"step_us": step})
    return compared.model_dump(mode="json")


class Script:
    """What a made server answers, in order, and what it was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, str, Any, bytes]] = []


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def server(script: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that follows ``script``; nobody pauses before asking it again."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            script.asked.append((self.command, self.path, self.headers, body))
            status, answer = script.answers.pop(0)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "http://elsewhere.example/")
            self.end_headers()
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        do_GET = do_POST = answer  # noqa: N815  # named by the base class

        def log_message(self, *args: Any) -> None:
            return

    made = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    thread.join()
    made.server_close()


def state(state: str, **changes: Any) -> dict[str, Any]:
    row = {"id": 7, "state": state, "title": "Fusion [1]", "percent": None, "doing": None, "answer": "", "failure": ""}
    return row | {"url": "/experiments/7/"} | changes


def bench(file: Path, server: str, *args: str, token: str = TOKEN) -> None:
    call_command("bench", str(file), "--server", server, "--token", token, *args)


def code_of(caught: pytest.ExceptionInfo[CommandError]) -> int:
    return caught.value.returncode


def test_it_queues_the_file_and_prints_the_number(script: Script, server: str, file: Path, capsys: Any) -> None:
    script.answers = [(201, state("queued"))]
    bench(file, f"{server}/", "--pool", "gpu 1")
    assert capsys.readouterr().out == "7\n"
    [(method, path, headers, body)] = script.asked
    assert (method, path, body) == ("POST", "/api/v1/experiments/?pool=gpu+1", file.read_bytes())
    assert headers["Authorization"] == f"Bearer {TOKEN}"


def test_labels_of_the_command_and_its_environment_are_sent(
    script: Script, server: str, file: Path, settings: Any
) -> None:
    settings.MOESCOPE_LABELS = ["site=lab"]
    script.answers = [(201, state("queued"))]
    bench(file, server, "--label", "image=2 a")
    assert script.asked[0][1] == "/api/v1/experiments/?label=site%3Dlab&label=image%3D2+a"


def test_it_says_how_far_it_is_and_writes_what_came_out(
    script: Script,
    server: str,
    file: Path,
    tmp_path: Path,
    capsys: Any,
) -> None:
    running = state("running", percent=25, doing="step 1 of 4")
    done = state("done", answer="none has the shortest step.")
    result = {"comparisons": [comparison("slower")]}
    script.answers = [(201, state("queued")), (200, state("queued")), (200, running), (200, running), (200, done),
                      (200, result)]  # fmt: skip
    out, summary = tmp_path / "result.json", tmp_path / "summary.md"
    summary.write_text("# Before\n")
    bench(file, server, "--out", str(out), "--summary", str(summary))
    assert json.loads(out.read_bytes()) == result
    assert capsys.readouterr().err.splitlines() == [
        "queued", "[█████░░░░░░░░░░░░░░░] 25% step 1 of 4", "done", "none has the shortest step.",
    ]  # fmt: skip
    assert summary.read_text() == (
        f"# Before\n## [Fusion \\[1\\]]({server}/experiments/7/)\n\nnone has the shortest step.\n\n"
        "| variant | at | step | verdict |\n| --- | --- | ---: | --- |\n"
        "| none against gate\\_up | 1×16 | +8.1% (+7.1% to +9.1%, 40 pairs) | slower |\n"
    )


@pytest.mark.parametrize(
    ("compared", "regressed"),
    [([comparison("slower")], True), ([comparison("faster", 0.9)], False), ([], False),
     ([comparison("no significant change", 1.001)], False), ([comparison("slower", condition=None)], False)],
)  # fmt: skip
def test_a_slower_variant_is_exit_code_5(
    script: Script,
    server: str,
    file: Path,
    compared: list[Any],
    regressed: bool,
) -> None:
    script.answers = [(201, state("queued")), (200, state("done")), (200, {"comparisons": compared})]
    if not regressed:
        bench(file, server, "--fail-on", "regression")
        return
    with pytest.raises(CommandError) as caught:
        bench(file, server, "--fail-on", "regression")
    assert code_of(caught) == 5
    assert str(caught.value) == "none is slower than gate_up at 1×16: +8.1% (+7.1% to +9.1%, 40 pairs)"


def test_a_failure_is_exit_code_1_and_in_the_summary(
    script: Script,
    server: str,
    file: Path,
    tmp_path: Path,
) -> None:
    script.answers = [(201, state("queued")), (200, state("failed", failure="It was killed."))]
    with pytest.raises(CommandError, match=r"^It was killed\.$") as caught:
        bench(file, server, "--summary", str(tmp_path / "summary.md"))
    assert code_of(caught) == 1
    assert (tmp_path / "summary.md").read_text().endswith("\n\nIt was killed.\n")


@pytest.mark.parametrize(
    ("status", "answer", "sentence", "code"),
    [
        (422, {"detail": "base.layers: no"}, "base.layers: no", 2),
        (401, {"detail": "This token is expired."}, "This token is expired.", 1),
        (413, b"<html>", r"http://127\.0\.0\.1:\d+/api/v1/experiments/ answers 413 .+", 1),
        (302, b"", r"http://.+/experiments/ answers 302 Found, to http://elsewhere\.example/: name the address .+", 1),
        (
            200,
            b"<html>",
            r"http://127\.0\.0\.1:\d+ does not answer as a Moescope does: is this the address of one\?",
            1,
        ),
        (200, [], r"http://127\.0\.0\.1:\d+ does not answer as a Moescope does: .+", 1),
        (404, [], r"http://127\.0\.0\.1:\d+/api/v1/experiments/ answers 404 Not Found", 1),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(
    script: Script,
    server: str,
    file: Path,
    status: int,
    answer: Any,
    sentence: str,
    code: int,
) -> None:
    script.answers = [(status, answer)]
    with pytest.raises(CommandError) as caught:
        bench(file, server)
    assert re.fullmatch(sentence, str(caught.value))
    assert code_of(caught) == code
    assert TOKEN not in str(caught.value)
    assert len(script.asked) == 1


def test_a_server_that_is_away_is_asked_again_with_the_same_key(
    script: Script, server: str, file: Path, capsys: Any
) -> None:
    script.answers = [(503, b""), (502, b""), (201, state("queued"))]
    bench(file, server)
    [said] = capsys.readouterr().err.splitlines()
    assert said.endswith("/api/v1/experiments/ answers 503 Service Unavailable; asking again for up to 120 s")
    assert len({headers["Idempotency-Key"] for _, _, headers, _ in script.asked}) == 1


def test_a_server_that_stays_away_is_given_up(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PATIENCE_S", -1)
    with pytest.raises(CommandError, match=r"^http://127\.0\.0\.1:1 can't be reached: .*refused") as caught:
        bench(file, "http://127.0.0.1:1")
    assert code_of(caught) == 1


@pytest.mark.parametrize(
    ("server", "token", "sentence"),
    [("moescope.example.org", TOKEN, "--server: 'moescope.example.org' is not allowed; it must begin with https"),
     ("https://x.example", "", "--token: give one, or set MOESCOPE_TOKEN."),
     ("https://x.example", "a\nb", "--token: it has characters that no token has.")],
)  # fmt: skip
def test_bad_arguments_are_exit_code_2(file: Path, server: str, token: str, sentence: str) -> None:
    with pytest.raises(CommandError, match=re.escape(sentence)) as caught:
        bench(file, server, token=token)
    assert code_of(caught) == 2


def test_a_file_that_is_not_there_is_exit_code_2(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="can't be read: No such file or directory") as caught:
        bench(tmp_path / "no.json", "https://x.example")
    assert code_of(caught) == 2


@pytest.mark.parametrize("address", ["http://[::1", "http://a b/", "https://"])
def test_what_is_no_address_is_not_asked_again(file: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(remote, "PATIENCE_S", -1)
    with pytest.raises(CommandError, match=r"can't be (asked|reached): ") as caught:
        bench(file, address)
    assert code_of(caught) == 1


def test_a_certificate_that_is_not_trusted_is_not_asked_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise urllib.error.URLError(ssl.SSLCertVerificationError("certificate has expired"))

    monkeypatch.setattr(remote._OPENER, "open", refuse)
    with pytest.raises(CommandError, match=r"^https://x\.example can't be reached: .*certificate has expired"):
        bench(file, "https://x.example")


@pytest.mark.parametrize("option", ["--out", "--summary"])
def test_a_place_that_can_not_be_written_is_told_before_anything_is_queued(
    script: Script, server: str, file: Path, tmp_path: Path, option: str
) -> None:
    with pytest.raises(CommandError, match=f"^{option}: .+ can't be written: there is no directory ") as caught:
        bench(file, server, option, str(tmp_path / "no" / "x"))
    assert code_of(caught) == 2
    with pytest.raises(CommandError, match=f"^{option}: .+ can't be written: it is a directory"):
        bench(file, server, option, str(tmp_path))
    assert not script.asked


def test_ctrl_c_ends_the_command_and_says_that_the_experiment_goes_on(
    script: Script, server: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(remote.time, "sleep", interrupt)
    script.answers = [(201, state("queued")), (200, state("running"))]
    with pytest.raises(CommandError) as caught:
        bench(file, server, "--wait")
    assert code_of(caught) == 130
    assert str(caught.value) == (f"Experiment 7 goes on without you; cancel it on its page, {server}/experiments/7/")


def test_a_checkout_without_a_database_is_enough(script: Script, server: str, file: Path, tmp_path: Path) -> None:
    """As in a pipeline: no product runs there, and none is named in the environment."""
    script.answers = [(201, state("queued"))]
    environment = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "BROKER_URL")}
    done = subprocess.run(
        [sys.executable, "manage.py", "bench", str(file), "--server", server],
        env=environment | {"MOESCOPE_DATA": str(tmp_path / "none"), "MOESCOPE_TOKEN": f"{TOKEN}\n"},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
    assert script.asked[0][2]["Authorization"] == f"Bearer {TOKEN}"


def test_a_summary_needs_a_server(file: Path) -> None:
    with pytest.raises(CommandError, match=r"^--summary: needs --server\.$"):
        call_command("bench", str(file), "--summary", "x.md")


@pytest.mark.django_db(transaction=True)
def test_it_works_against_the_product(
    live_server: Any,
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    worker_meanwhile: None,
) -> None:
    bert = User.objects.create_user("bert", role="runner")
    _, token = tokens.issue(bert, "CI", list(Scope), None)
    monkeypatch.setenv("MOESCOPE_TOKEN", token)
    out = tmp_path / "result.json"
    call_command("bench", str(file), "--server", live_server.url, "--out", str(out), "--fail-on", "regression")
    row = Experiment.objects.get()
    assert (row.state, row.author) == (State.DONE, bert)
    assert Result.model_validate_json(out.read_bytes()) == make.result(make.experiment())
