"""``python manage.py up``: the whole product on this machine."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import Tags
from django.core.management.base import BaseCommand, CommandError, CommandParser

from webapp import supervisor
from webapp.processes import StartError


class Command(BaseCommand):
    help = "Start database, broker, web, worker and beat; stop them all with Ctrl-C."
    requires_system_checks = ("moescope", Tags.staticfiles)  # not those that ask for the servers: it starts them

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=port, default=8000, help="Port of the pages; 0 takes a free one.")
        parser.add_argument("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 lets others in.")
        parser.add_argument("--data", type=Path, default=settings.MOESCOPE_DATA, help="Where everything is kept.")

    def handle(self, *args: Any, **options: Any) -> None:
        def say(line: str) -> None:
            self.stdout.write(line)
            self.stdout.flush()

        try:
            supervisor.up(options["data"].expanduser().resolve(), options["host"], options["port"], say)
        except StartError as error:
            raise CommandError(str(error)) from None


def port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise ArgumentTypeError(f"{text!r} is not a port number from 0 to 65535")
    return int(text)
