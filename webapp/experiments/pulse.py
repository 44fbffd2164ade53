"""Signs of life of the parts that leave no other trace: beat, which sends the sweep every few seconds."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

from celery.signals import after_task_publish
from django.db import InterfaceError, OperationalError, connection

from webapp.experiments.models import Pulse, clock

BEAT = "beat"
SWEEP = "webapp.experiments.tasks.sweep"
SILENT_AFTER = timedelta(seconds=60)

log = logging.getLogger(__name__)


@after_task_publish.connect(sender=SWEEP)
def _note_beat(**kwargs: Any) -> None:
    """Only beat sends the sweep; that it did, and reached the broker, is noted here."""
    try:
        note(BEAT)
    except (OperationalError, InterfaceError) as error:  # the database is away: beat goes on
        log.warning("Beat's sign of life is not written: %s", error)
    finally:
        connection.close()


def note(part: str) -> None:
    Pulse.objects.update_or_create(part=part, defaults={"at": clock()})


def last(part: str) -> datetime | None:
    """When ``part`` last did its work, or None if it never has."""
    return Pulse.objects.filter(part=part).values_list("at", flat=True).first()
