"""``manage.py bench FILE [--pool POOL] [--wait] [--out RESULT]``: queue an experiment file on the running product."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from bench_worker.errors import DoesNotFit, SpecError
from bench_worker.spec import read_experiment
from webapp.experiments import export, machines, memory, present, queue
from webapp.experiments.models import Experiment, State
from webapp.traces.store import traces_library

#: Exit codes: the measuring program's own where it has one.
NOT_DONE, BAD_EXPERIMENT, DOES_NOT_FIT = 1, 2, 3
LOOK_EVERY_S = 0.5


class Command(BaseCommand):
    help = "Queues an experiment file on the running product and prints the experiment's number."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--pool", help="the pool whose workers may take it; without it the default one")
        parser.add_argument("--wait", action="store_true", help="follow it to its end; exit 0 only if it is done")
        parser.add_argument("--out", type=Path, metavar="RESULT", help="wait, and write the result file here")

    def handle(self, *args: Any, file: Path, pool: str | None, wait: bool, out: Path | None, **options: Any) -> None:
        if pool is not None and pool not in (known := machines.pools()):
            sentence = f"--pool: {pool!r} is not one that a worker has served: {', '.join(known)}."
            raise CommandError(sentence, returncode=BAD_EXPERIMENT)
        try:
            experiment = read_experiment(file, traces_library())
            memory.check(experiment, pool)
        except SpecError as error:
            raise CommandError(str(error), returncode=BAD_EXPERIMENT) from None
        except DoesNotFit as error:
            raise CommandError(str(error), returncode=DOES_NOT_FIT) from None
        row = queue.enqueue(experiment, author=None, pool=pool)
        self.stdout.write(str(row.pk))
        self.stdout.flush()
        if wait or out is not None:
            self._follow(row)
            self._finish(row, out)

    def _follow(self, row: Experiment) -> None:
        """Say on standard error what happens until the experiment has ended."""
        said = ""
        while not row.is_ended:
            line = row.state if row.state != State.RUNNING else present.now(row.progress, timezone.now()).doing
            if line != said:
                self.stderr.write(said := line)
            time.sleep(LOOK_EVERY_S)
            row.refresh_from_db()

    def _finish(self, row: Experiment, out: Path | None) -> None:
        if row.state != State.DONE:
            raise CommandError(row.failure or f"Experiment {row.pk} was canceled.", returncode=NOT_DONE)
        self.stderr.write(row.answer)
        if out is not None:
            result = export.result_of(row)
            assert result is not None
            out.write_bytes(export.as_json(result))
