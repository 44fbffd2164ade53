"""``manage.py thin [--days N] [--dry-run]``: thin the steps of old experiments to summaries now, or say what that would
be."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from webapp.experiments import thinning
from webapp.history import retention
from webapp.ui.formatting import count, size


class Command(BaseCommand):
    help = "Thins the step samples of old experiments to summaries, as workers do each night; see docs/history.md."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--days", type=int, help="older than this; otherwise MOESCOPE_KEEP_STEPS_DAYS")
        parser.add_argument("--dry-run", action="store_true", help="only say how many runs and bytes")

    def handle(self, *args: Any, days: int | None, dry_run: bool, **options: Any) -> None:
        days = settings.MOESCOPE_KEEP_STEPS_DAYS if days is None else days
        if days < 1:
            raise CommandError(
                f"--days: {days} is too few; give 1 or more, or set MOESCOPE_KEEP_STEPS_DAYS.", returncode=2
            )
        now = timezone.now()
        old = retention.before(now, days)
        found = thinning.size_of(retention.thinnable(old)) if dry_run else retention.thin_all(old, now)
        experiments = "1 experiment" if found.experiments == 1 else f"{count(found.experiments)} experiments"
        would = "would lose" if dry_run else "lost"
        self.stdout.write(
            f"{count(found.runs)} runs of {experiments} older than {days} days {would} their "
            f"steps: {count(found.num_bytes)} bytes ({size(found.num_bytes)})."
        )
