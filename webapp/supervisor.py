"""Runs the whole product on one machine: servers, web, worker and beat as children of one process.

What it starts it also ends: in order on Ctrl-C or TERM, with what its children left behind; and when it is killed
itself the children follow (see `processes`). One product a data directory, held by a lock on a file.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from bench_worker import machine_state
from bench_worker.host import PROCESSORS, usable_cores
from webapp import address, embedded, processes, state
from webapp.processes import Part, StartError
from webapp.state import ProcessId, State

BASE_DIR = Path(__file__).resolve().parent.parent
WEB_THREADS = 8
#: Stopping takes at most the sum: the rooms' programs first, then the servers that they use.
ROOMS_PATIENCE_S, SERVERS_PATIENCE_S = 7.0, 2.0
FIRST_BACKOFF_S, LAST_BACKOFF_S = 1.0, 30.0
#: A part that ran this long has recovered: its next end starts with the shortest back-off again.
RECOVERED_AFTER_S = 60.0

Say = Callable[[str], None]


def up(data: Path, host: str, port: int, say: Say) -> None:
    """Start everything, keep it running, and stop it all on Ctrl-C or TERM. Raises `StartError`."""
    make_data_directory(data)
    with held_alone(data), address.listen(host, port) as listener:
        interrupt_once()
        processes.adopt_orphans()
        clean_up_after(data)
        state.make_secret_key(data)
        product = Product(data, host, listener, say)
        try:
            product.start()
            product.watch()
        except KeyboardInterrupt:
            say("Stopping ...")
        finally:
            product.stop()
        say("Stopped.")


@dataclass
class Running:
    """A part with the process that now stands for it, or the time at which one will."""

    part: Part
    process: subprocess.Popen[bytes]
    since: float
    backoff_s: float = FIRST_BACKOFF_S
    start_again_at: float | None = None


class Product:
    """The running parts. ``start`` once, ``watch`` until interrupted, ``stop`` always."""

    def __init__(self, data: Path, host: str, listener: socket.socket, say: Say) -> None:
        self.data, self.say, self.listener = data, say, listener
        self.address = f"http://{address.as_seen_from_here(host)}:{listener.getsockname()[1]}"
        self.env = {"MOESCOPE_DATA": str(data), "PYTHONUNBUFFERED": "1"}
        if "ALLOWED_HOSTS" not in os.environ:
            self.env["ALLOWED_HOSTS"] = ",".join(address.names_of(host))
        self.servers: list[Running] = []
        self.rooms: list[Running] = []
        self.sockets = ""
        self.scratch = data / "tmp"  # of web and worker: they may be killed before they tidy up

    def start(self) -> None:
        began = time.monotonic()
        self._empty_scratch()
        self.scratch.mkdir()
        self.say(f"Moescope, with its data in {self.data}")
        if limited := machine_state.threads_flag(os.environ, usable_cores(PROCESSORS)):
            self.say(limited)
        self._start_servers()
        facts = self._prepare()
        web, *others = self._programs()
        for part in (web, *others):
            self._launch(part, self.rooms)
        processes.wait_until_ready(web, self.rooms[0].process)
        self.say(
            f"Web, worker and beat run on {self.address} after {time.monotonic() - began:.1f} s; logs: {self.logs}"
        )
        if facts["queued"]:
            self.say(f"Queued a first experiment: {facts['queued']}")
        self.say(f"Sign in as {facts['user']}, with a link that works once:\n\n    {self.address}{facts['link']}\n")
        self.say("Ctrl-C stops it all.")

    def watch(self) -> None:
        """Start again what ends, later each time it ends soon after its start."""
        while True:
            time.sleep(0.5)
            parts = (*self.servers, *self.rooms)
            for running in parts:
                self.look_after(running)
            processes.reap_orphans([running.process.pid for running in parts])

    def stop(self) -> None:
        for group, patience_s in ((self.rooms, ROOMS_PATIENCE_S), (self.servers, SERVERS_PATIENCE_S)):
            processes.stop({running.process: running.part.stop_signal for running in group}, patience_s)
        processes.kill(processes.descendants(os.getpid()))  # what lost its parent on the way
        if self.sockets:
            shutil.rmtree(self.sockets, ignore_errors=True)
        self._empty_scratch()
        state.remove(self.data)

    @property
    def logs(self) -> Path:
        return self.data / "log"

    def _empty_scratch(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _start_servers(self) -> None:
        urls = {name: os.environ[name] for name in ("DATABASE_URL", "BROKER_URL") if os.environ.get(name)}
        if len(urls) < 2:
            user = embedded.servers_user(self.data)
            sockets = embedded.make_sockets(self.data, user)
            self.sockets = str(sockets.directory)
            if "DATABASE_URL" not in urls:
                self._start_server(embedded.postgres(self.data, sockets, user))
                urls["DATABASE_URL"] = sockets.database_url
            if "BROKER_URL" not in urls:
                self._start_server(embedded.valkey(self.data, sockets, user))
                urls["BROKER_URL"] = sockets.broker_url
        self.env |= urls

    def _start_server(self, part: Part) -> None:
        began = time.monotonic()
        running = self._launch(part, self.servers)
        processes.wait_until_ready(part, running.process)
        self.say(f"{part.name} is ready ({time.monotonic() - began:.1f} s)")

    def _prepare(self) -> dict[str, Any]:
        """Bring the database up to date; the sign-in link and the first experiment come back."""
        log = self.logs / "prepare.log"
        with log.open("ab") as errors:
            done = subprocess.run(
                [sys.executable, "manage.py", "prepare"],
                cwd=BASE_DIR,
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                preexec_fn=processes.die_with_parent(signal.SIGKILL),
                check=False,
            )
        if done.returncode:
            raise StartError(f"The database could not be brought up to date.{processes.end_of(log)}")
        return dict(json.loads(done.stdout))

    def _programs(self) -> list[Part]:
        celery = [sys.executable, "-m", "celery", "-A", "webapp.celery"]
        pool = os.environ.get("MOESCOPE_POOL", "default")
        web = [sys.executable, "-m", "gunicorn", "webapp.wsgi", "--worker-class=gthread", f"--threads={WEB_THREADS}"]
        listening = self.listener.fileno()
        schedule = self.data / "beat" / "schedule"
        common = Part(name="", command=(), log=self.logs, env=self.env, directory=BASE_DIR)
        return [
            replace(
                common,
                name="Web",
                command=[*web, f"--bind=fd://{listening}", "--graceful-timeout=3", "--no-control-socket"],
                log=self.logs / "web.log",
                env=self.env | {"TMPDIR": str(self.scratch)},  # uploads are large, and other places may lie in memory
                is_ready=lambda: address.answers(f"{self.address}/healthz"),
                keep_fds=(listening,),
            ),
            replace(
                common,
                name="Worker",
                command=[
                    *celery, "worker", f"--hostname=moescope-{pool}@%h", "--pool=prefork", "--concurrency=1",
                    "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=WARNING",
                ],
                log=self.logs / "worker.log",
                env=self.env | {"TMPDIR": str(self.scratch)},
                orphan_signal=signal.SIGKILL,  # TERM would wait for the experiment
            ),
            replace(
                common,
                name="Beat",
                command=[*celery, "beat", "--pidfile=", f"--schedule={schedule}", "--loglevel=WARNING"],
                log=self.logs / "beat.log",
            ),
        ]  # fmt: skip

    def _launch(self, part: Part, group: list[Running]) -> Running:
        running = Running(part, processes.start(part), time.monotonic())
        group.append(running)
        self._write_state()
        return running

    def look_after(self, running: Running) -> None:
        """Note that a part has ended; start it again once its back-off is over."""
        now = time.monotonic()
        if running.start_again_at is None:
            code = running.process.poll()
            if code is not None:
                if now - running.since > RECOVERED_AFTER_S:
                    running.backoff_s = FIRST_BACKOFF_S
                self._put_off(running, f"ended ({processes.how_it_ended(code)})")
        elif now >= running.start_again_at:
            try:
                running.process, running.since = processes.start(running.part), now
            except OSError as error:  # no memory, no space: neither ends the parts that still run
                self._put_off(running, f"can't be started ({error.strerror})")
            else:
                running.start_again_at = None
                self._write_state()

    def _put_off(self, running: Running, what: str) -> None:
        wait_s, running.backoff_s = running.backoff_s, min(running.backoff_s * 2, LAST_BACKOFF_S)
        running.start_again_at = time.monotonic() + wait_s
        self.say(f"{running.part.name} {what}; starting it again in {wait_s:g} s (log: {running.part.log})")

    def _write_state(self) -> None:
        living = [running for running in (*self.servers, *self.rooms) if running.process.poll() is None]
        now = State(
            supervisor=ProcessId.of(os.getpid()),
            database_url=self.env.get("DATABASE_URL", ""),
            broker_url=self.env.get("BROKER_URL", ""),
            sockets=self.sockets,
            parts={running.part.name: ProcessId.of(running.process.pid) for running in living},
        )
        try:
            now.write(self.data)
        except OSError as error:  # a full disk
            self.say(f"What runs can't be written down in {self.data}: {error.strerror}")


def interrupt_once() -> None:
    """The first Ctrl-C, TERM or hang-up raises `KeyboardInterrupt`; later ones can't break off the orderly end."""
    asked_to_stop = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(number: int, frame: FrameType | None) -> None:
        for later in asked_to_stop:
            signal.signal(later, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in asked_to_stop:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup means it
            signal.signal(number, interrupt)


def make_data_directory(data: Path) -> None:
    try:
        for directory in (data / "log", data / "beat"):
            directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"The data directory {data} can't be made: {error.strerror}.") from None
    if not os.access(data, os.W_OK) or not os.access(data / "log", os.W_OK):
        raise StartError(f"You may not write into the data directory {data}: choose another with --data.")


@contextmanager
def held_alone(data: Path) -> Iterator[None]:
    """The lock of a data directory, gone with its holder however that ends. Raises `StartError` where it is taken."""
    with (data / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            running = state.read(data)
            who = f" (process {running.supervisor.pid})" if running else ""
            raise StartError(
                f"Moescope already runs on {data}{who}: stop it first, or choose another directory with --data."
            ) from None
        yield


def clean_up_after(data: Path) -> None:
    """End what a product that was killed left behind: its processes, and its sockets outside the data directory."""
    left = state.read_any(data)
    if left is None:
        return
    alive = [process for part in left.parts.values() if (process := part.process())]
    family = [relative for process in alive for relative in processes.descendants(process.pid)]
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGINT)  # every part takes it for a quick, orderly end
    psutil.wait_procs(alive, timeout=ROOMS_PATIENCE_S)
    processes.kill([*alive, *family])
    if left.sockets:
        shutil.rmtree(left.sockets, ignore_errors=True)
    state.remove(data)
