"""What the commands that queue something share: ``--pool``, ``--wait`` and ``--out``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from bench_worker.errors import DoesNotFit, SpecError
from webapp.experiments import export, machines, present
from webapp.experiments.models import Experiment, State

#: Exit codes: the measuring program's own where it has one.
NOT_DONE, BAD_EXPERIMENT, DOES_NOT_FIT, INTERRUPTED = 1, 2, 3, 130
LOOK_EVERY_S = 0.5


class QueueingCommand(BaseCommand):
    """Queues one row, prints its number and, where that is asked for, follows it to its end."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--pool", help="the pool whose workers may take it; without it the default one")
        parser.add_argument("--wait", action="store_true", help="follow it to its end; exit 0 only if it is done")
        parser.add_argument("--out", type=Path, metavar="RESULT", help="wait, and write the result file here")

    def queue(self, enqueue: Callable[[], Experiment], pool: str | None, wait: bool, out: Path | None) -> Experiment:
        """``enqueue`` checks what is asked for, and raises `SpecError` or `DoesNotFit` for what can't be measured."""
        if pool is not None and pool not in (known := machines.pools()):
            sentence = f"--pool: {pool!r} is not one that a worker has served: {', '.join(known)}."
            raise CommandError(sentence, returncode=BAD_EXPERIMENT)
        if out is not None:
            check_place("--out", out)
        try:
            row = enqueue()
        except SpecError as error:
            raise CommandError(str(error), returncode=BAD_EXPERIMENT) from None
        except DoesNotFit as error:
            raise CommandError(str(error), returncode=DOES_NOT_FIT) from None
        self.stdout.write(str(row.pk))
        self.stdout.flush()
        if wait or out is not None:
            try:
                self._follow(row)
            except KeyboardInterrupt:
                raise goes_on(row.pk, row.get_absolute_url()) from None
            self._finish(row, out)
        return row

    def _follow(self, row: Experiment) -> None:
        """Say on standard error what happens until the row has ended."""
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


def goes_on(number: int, page: str) -> CommandError:
    """What Ctrl-C ends is the command alone."""
    return CommandError(
        f"Experiment {number} goes on without you; cancel it on its page, {page}", returncode=INTERRUPTED
    )


def check_place(option: str, file: Path) -> None:
    """Raise `CommandError` where ``file`` could not be written: better now than after an hour of measuring."""
    if not file.parent.is_dir() or file.is_dir():
        why = "it is a directory" if file.is_dir() else f"there is no directory {file.parent}"
        raise CommandError(f"{option}: {file} can't be written: {why}.", returncode=BAD_EXPERIMENT)
