"""``manage.py import_trace FILE [--name NAME] [--first N]``: a request trace for everyone's experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from bench_worker.workload.requests import TraceError
from webapp.traces.store import import_trace


class Command(BaseCommand):
    help = "Imports a request trace (Azure CSV, Mooncake JSON lines or plain CSV) under a name."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--name", help="how experiments name it; by default the file's own name")
        parser.add_argument("--first", type=int, metavar="N", help="keep its first N requests alone")

    def handle(self, *args: Any, file: Path, name: str | None, first: int | None, **options: Any) -> None:
        if first is not None and first < 1:
            raise CommandError(f"--first: {first} is not allowed; it must be at least 1", returncode=2)
        try:
            trace, is_new = import_trace(file, name, first=first)
        except TraceError as error:
            raise CommandError(str(error), returncode=2) from None
        if is_new:
            self.stdout.write(
                f"{trace.name}: {trace.num_requests:,} requests, {trace.total_prompt_tokens:,} prompt tokens, "
                f"{trace.total_output_tokens:,} output tokens"
            )
        else:
            self.stdout.write(f"{file.name}: the same requests are already here as {trace.name}")
