"""``manage.py createtoken USER [--name NAME] [--may read|run] [--days N]``: an API token, printed once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from webapp.accounts import tokens
from webapp.accounts.models import Scope, User

MAX_DAYS = 3650


class Command(BaseCommand):
    help = "Makes an API token for a member and prints it. It can't be shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user", help="the member's name")
        parser.add_argument("--name", default="made on the command line", help="what it is for")
        parser.add_argument("--may", choices=Scope.values, default=Scope.RUN.value)
        parser.add_argument("--days", type=int, default=90, help="until it expires; 0: never")

    def handle(self, *args: Any, user: str, name: str, may: str, days: int, **options: Any) -> None:
        if not 0 <= days <= MAX_DAYS:
            raise CommandError(f"--days: {days} is not allowed; it must be 0 to {MAX_DAYS:,}", returncode=2)
        owner = User.objects.filter(username=user, is_active=True).first()
        if owner is None:
            raise CommandError(f"USER: {user!r} is not the name of a member who may sign in.", returncode=2)
        if may == Scope.RUN and not owner.may_run:
            raise CommandError(f"--may: {user} is a viewer, whose tokens may only read.", returncode=2)
        _, text = tokens.issue(owner, name[:100], tokens.SCOPES[may], timedelta(days=days) if days else None)
        self.stdout.write(text)
