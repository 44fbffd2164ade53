"""``manage.py import_recording FILE ... [--name NAME] [--experts N]``: an expert load for everyone's experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from bench_worker.workload.recordings import RecordingError
from webapp.traces.recording_store import import_recording


class Command(BaseCommand):
    help = "Imports a recording of expert load (npz, JSON, JSON lines, CSV or SGLang's dumps) under a name."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "file",
            type=Path,
            nargs="+",
            help="several where SGLang wrote one for each rank; FILE#DOMAIN for one of several domains",
        )
        parser.add_argument("--name", help="how experiments name it; by default the file's own name")
        parser.add_argument(
            "--experts", type=int, metavar="N", help="experts of the model, where FILE leaves that to be guessed"
        )

    def handle(self, *args: Any, file: list[Path], name: str | None, experts: int | None, **options: Any) -> None:
        try:
            recording, is_new = import_recording(file, name, num_experts=experts)
        except RecordingError as error:
            raise CommandError(str(error), returncode=2) from None
        if is_new:
            self.stdout.write(f"{recording.name}: {recording.summary}")
            if recording.dropped_rows:
                self.stdout.write(f"{recording.dropped_rows:,} rows of a profiling pass were left out.")
        else:
            self.stdout.write(f"{file[0].name}: the same load is already here as {recording.name}")
