"""The product as a newcomer starts it: real processes, one start for the module."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import psutil
import pytest

from tests.webapp.experiments.waiting import wait_until
from webapp import processes

ROOT = Path(__file__).resolve().parents[2]
SERVED_BY = ("DATABASE_URL", "BROKER_URL", "MOESCOPE_DATA", "DJANGO_SETTINGS_MODULE", "SECRET_KEY", "ALLOWED_HOSTS")


def up(*arguments):
    env = {name: value for name, value in os.environ.items() if name not in SERVED_BY}
    return subprocess.Popen(
        [sys.executable, "manage.py", "up", *map(str, arguments)],
        cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def read_until(process, pattern, within_s=180):
    """What the process printed up to the first match of ``pattern``, and the match."""
    timer = threading.Timer(within_s, process.kill)  # ends the reading below, should nothing come
    timer.start()
    said = ""
    for line in process.stdout:
        said += line
        if match := re.search(pattern, said):
            timer.cancel()
            return said, match
    raise AssertionError(f"no {pattern!r} in:\n{said}")


def wait_for(condition, within_s=120):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def belonging_to(data):
    """Every process that works in the data directory, or whose environment or command line names it."""
    found = []
    for process in psutil.process_iter():
        try:
            named = [process.cwd(), process.environ().get("MOESCOPE_DATA", ""), *process.cmdline()]
            lives = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue  # ended meanwhile
        if lives and any(str(data) in name for name in named):
            found.append(process)
    return found


def state_of(data):
    return json.loads((data / "state.json").read_text())


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture(scope="module")
def data():
    directory = Path(tempfile.mkdtemp(prefix="m-"))
    yield directory
    processes.kill(belonging_to(directory))
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def product(data):
    """A running product in an empty directory: the process, its address and what it printed."""
    process = up("--port", 0, "--data", data)
    said, match = read_until(process, r"(http://127\.0\.0\.1:\d+)(/sign-in/\S+)")
    yield process, match[1], match[2], said
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_pages_answer_once_the_link_is_printed(product):
    _, address, *_ = product
    status, body = get(f"{address}/healthz")
    health = json.loads(body)
    assert (status, health["database"], health["broker"]) == (200, {"status": "ok"}, {"status": "ok"})


def test_worker_and_beat_are_heard_of(product):
    _, address, *_ = product
    assert wait_until(lambda: json.loads(get(f"{address}/healthz")[1])["status"] == "ok", within_s=120)


def test_it_says_in_a_few_plain_lines_what_it_did(product):
    said = product[3]
    assert "Postgres is ready" in said
    assert "Valkey is ready" in said
    assert "Queued a first experiment" in said
    assert len(said.splitlines()) <= 10


def test_the_link_signs_in_once(product):
    _, address, link, *_ = product
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    with browser.open(address + link, timeout=30) as home:
        assert home.url == f"{address}/"
        assert "admin" in home.read().decode()
    status, body = get(address + link)
    assert status == 403
    assert "no longer works" in body


def test_a_large_body_is_refused_in_one_sentence(product):
    address = product[1]
    request = urllib.request.Request(f"{address}/sign-in/", data=b"x" * 10_000_000, method="POST")
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request, timeout=30)
    assert refusal.value.code == 413
    assert "at most 1,000,000 are accepted" in refusal.value.read().decode()


def test_a_second_start_on_the_same_data_is_refused(product, data):
    process = product[0]
    second = up("--port", 0, "--data", data)
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 1
    assert said == (
        f"CommandError: Moescope already runs on {data} (process {process.pid}): "
        "stop it first, or choose another directory with --data.\n"
    )


def test_a_taken_port_is_refused(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = up("--port", port, "--data", tmp_path)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said == (
        f"CommandError: Port {port} on 127.0.0.1 can't be used (address already in use): choose another with --port.\n"
    )


def test_a_part_that_dies_starts_again_and_the_pages_answer_again(product, data):
    process, address, *_ = product
    for name in ("Valkey", "Postgres"):
        before = state_of(data)["parts"][name]["pid"]
        os.kill(before, signal.SIGKILL)
        read_until(process, rf"{name} ended \(SIGKILL\); starting it again in 1 s")
        wait_for(lambda name=name, before=before: state_of(data)["parts"][name]["pid"] != before)
    wait_for(lambda: get(f"{address}/healthz")[0] == 200)


def test_ctrl_c_stops_everything_within_ten_seconds(product, data):
    process = product[0]
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert time.monotonic() - began < 10
    assert process.returncode == 0
    assert said.endswith("Stopping ...\nStopped.\n")
    assert belonging_to(data) == []
    assert sorted(path.name for path in data.iterdir()) == ["attempts", "beat", "lock", "log", "postgres", "secret-key"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the next start ends what is left")
def test_nothing_outlives_a_killed_product_and_the_next_one_starts(data):
    process = up("--port", 0, "--data", data)
    said, _ = read_until(process, r"/sign-in/\S+")
    assert "first experiment" not in said  # the database is not empty any more
    process.kill()
    process.communicate()
    wait_for(lambda: belonging_to(data) == [])
    assert (data / "state.json").exists()

    process = up("--port", 0, "--data", data)
    _, match = read_until(process, r"(http://127\.0\.0\.1:\d+)/sign-in/")
    assert get(f"{match[1]}/healthz")[0] == 200
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert belonging_to(data) == []


@pytest.mark.parametrize("port", ["70000", "web", "-1"])
def test_a_bad_port_is_refused(port):
    process = up(f"--port={port}")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"'{port}' is not a port number from 0 to 65535" in said
