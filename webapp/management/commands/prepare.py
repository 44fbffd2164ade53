"""``python manage.py prepare``: what must be true before the pages are served; ``up`` runs it at each start."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.urls import reverse

from bench_worker.spec import parse_experiment
from webapp.accounts.models import Role, SignInLink, User
from webapp.experiments.models import Experiment
from webapp.experiments.queue import enqueue

FIRST_LOOK = settings.BASE_DIR / "samples" / "first-look.json"


class Command(BaseCommand):
    help = "Migrate the database, make the first user and a one-time sign-in link, queue a first experiment."

    def handle(self, *args: Any, **options: Any) -> None:
        """Prints one JSON object: ``user`` and ``link`` to sign in, and the title of what was ``queued``, or null."""
        call_command("migrate", interactive=False, verbosity=1, stdout=sys.stderr)
        user = first_user()
        queued = None if Experiment.objects.exists() else queue_first_look(user)
        link = reverse("sign-in-link", args=[SignInLink.issue(user)])
        self.stdout.write(json.dumps({"user": user.get_username(), "link": link, "queued": queued}))


def first_user() -> User:
    """The administrator who has been here longest; where there is none, ``admin`` becomes one.

    A new ``admin`` has no password: it comes in by the link and may set one.
    """
    known = User.objects.filter(role=Role.ADMIN, is_active=True).order_by("pk").first()
    if known is None:
        rights = {"role": Role.ADMIN, "is_active": True}
        unusable = {"password": make_password(None)}
        known, _ = User.objects.update_or_create(username="admin", defaults=rights, create_defaults=rights | unusable)
    return known


def queue_first_look(author: User) -> str:
    """Queue the sample, so that a newcomer sees something happen."""
    return enqueue(parse_experiment(FIRST_LOOK.read_bytes()), author=author).title
