"""``manage.py bench FILE [--wait] [--out RESULT] …``: queue an experiment file, here or on a server elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from bench_worker.spec import SpecError, read_experiment
from webapp.experiments import export, labels, memory, queue
from webapp.experiments.management.queueing import (
    BAD_EXPERIMENT,
    NOT_DONE,
    QueueingCommand,
    check_place,
    goes_on,
)
from webapp.experiments.management.remote import RemoteError, Server
from webapp.experiments.management.verdicts import markdown, slower
from webapp.experiments.models import Experiment
from webapp.traces.store import traces_library

#: Exit code of ``--fail-on regression``.
REGRESSED = 5
REMOTE_LOOK_EVERY_S = 2.0
BAR = 20


class Command(QueueingCommand):
    help = "Queues an experiment file on the running product, or on --server, and prints the experiment's number."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument(
            "--label", action="append", default=[], metavar="KEY=VALUE", help="a mark in the history; may be repeated"
        )
        super().add_arguments(parser)
        parser.add_argument("--server", metavar="URL", help="a Moescope elsewhere; without it, the one of this machine")
        parser.add_argument("--token", help="API token for --server; without it, that of MOESCOPE_TOKEN")
        parser.add_argument("--fail-on", choices=["regression"], help="wait, and exit 5 if a variant is slower")
        parser.add_argument("--summary", type=Path, metavar="FILE", help="with --server: append a summary in markdown")

    def execute(self, *args: Any, **options: Any) -> str | None:
        """What a server elsewhere is asked needs none here: no database, no broker, no checks of them."""
        return super().execute(*args, **options | ({"skip_checks": True} if options["server"] is not None else {}))

    def handle(
        self,
        *args: Any,
        file: Path,
        label: list[str],
        pool: str | None,
        wait: bool,
        out: Path | None,
        server: str | None,
        token: str | None,
        fail_on: str | None,
        summary: Path | None,
        **options: Any,
    ) -> None:
        try:
            given = queue.labels_here() | labels.parse(label, "--label")
        except SpecError as error:
            raise CommandError(str(error), returncode=BAD_EXPERIMENT) from None
        wait = wait or out is not None or fail_on is not None or summary is not None
        if server is not None:
            result = self._elsewhere(_server(server, token, self.stderr.write), file, given, pool, wait, out, summary)
        elif summary is not None:
            raise CommandError("--summary: needs --server.", returncode=BAD_EXPERIMENT)
        else:
            result = self._here(file, given, pool, wait, out)
        if fail_on is not None and result is not None and (found := slower(result)):
            raise CommandError("\n".join(found), returncode=REGRESSED)

    def _here(
        self, file: Path, given: dict[str, str], pool: str | None, wait: bool, out: Path | None
    ) -> dict[str, Any] | None:
        def enqueue() -> Experiment:
            experiment = read_experiment(file, traces_library())
            memory.check(experiment, pool)
            return queue.enqueue(experiment, author=None, pool=pool, labels=given)

        row = self.queue(enqueue, pool, wait, out)
        measured = export.result_of(row) if wait else None
        return None if measured is None else measured.model_dump(mode="json", by_alias=True, include={"comparisons"})

    def _elsewhere(
        self,
        server: Server,
        file: Path,
        given: dict[str, str],
        pool: str | None,
        wait: bool,
        out: Path | None,
        summary: Path | None,
    ) -> dict[str, Any] | None:
        """What was measured, or None where nobody waits for it."""
        for option, written in (("--out", out), ("--summary", summary)):
            if written is not None:
                check_place(option, written)
        try:
            document = file.read_bytes()
        except OSError as error:
            sentence = f"experiment: {file} can't be read: {error.strerror}"
            raise CommandError(sentence, returncode=BAD_EXPERIMENT) from None
        try:
            row = server.queue(document, pool, given)
            self.stdout.write(str(row["id"]))
            self.stdout.flush()
            if not wait:
                return None
            try:
                row = self._watch(server, row)
            except KeyboardInterrupt:
                raise goes_on(row["id"], server.page(row)) from None
            data = server.result(row["id"]) if row["state"] == "done" else None
        except RemoteError as error:
            raise CommandError(str(error), returncode=BAD_EXPERIMENT if error.status == 422 else NOT_DONE) from None
        result: dict[str, Any] | None = None if data is None else json.loads(data)
        if summary is not None:
            with summary.open("a", encoding="utf-8") as appended:
                appended.write(markdown(row, server.page(row), result))
        if data is None:
            raise CommandError(row["failure"] or f"Experiment {row['id']} was canceled.", returncode=NOT_DONE)
        self.stderr.write(row["answer"])
        if out is not None:
            out.write_bytes(data)
        return result

    def _watch(self, server: Server, row: dict[str, Any]) -> dict[str, Any]:
        """Say on standard error how far it is, each time that changes, until it has ended."""
        said = ""
        for now in server.states(row["id"], REMOTE_LOOK_EVERY_S):
            line = _progress(now)
            if line != said:
                self.stderr.write(said := line)
        return now


def _server(address: str, token: str | None, say: Callable[[str], None]) -> Server:
    token = (token or os.environ.get("MOESCOPE_TOKEN", "")).strip()
    if not address.startswith(("https://", "http://")):
        sentence = f"--server: {address!r} is not allowed; it must begin with https:// or http://"
        raise CommandError(sentence, returncode=BAD_EXPERIMENT)
    if not token:
        raise CommandError("--token: give one, or set MOESCOPE_TOKEN.", returncode=BAD_EXPERIMENT)
    if not (token.isascii() and token.isprintable()):
        raise CommandError("--token: it has characters that no token has.", returncode=BAD_EXPERIMENT)
    return Server(address, token, say)


def _progress(row: dict[str, Any]) -> str:
    if row["state"] != "running" or row["percent"] is None:
        return str(row["doing"] or row["state"])
    full = round(BAR * row["percent"] / 100)
    return f"[{'█' * full}{'░' * (BAR - full)}] {row['percent']}% {row['doing']}"
