"""What members change about an experiment that is there: its title, tags and notes, and whether it stays.

A deleted experiment is hidden, and can be brought back for `KEPT_FOR`; then the sweep removes it for good.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from webapp.experiments import queue
from webapp.experiments.models import ENDED, Experiment

KEPT_FOR = timedelta(days=7)

log = logging.getLogger(__name__)


def describe(pk: int, *, title: str, tags: Sequence[str], notes: str) -> None:
    """New words for an experiment; the title is also the document's, so that a copy of it carries the new one."""
    with transaction.atomic():
        row = Experiment.objects.select_for_update().only("document").get(pk=pk)
        row.document["title"] = title
        Experiment.objects.filter(pk=pk).update(title=title, document=row.document, tags=list(tags), notes=notes)


def delete(pk: int) -> None:
    """Hide it, and cancel what of it still waits or runs."""
    with transaction.atomic():
        locked = Experiment.objects.visible().select_for_update().only("pk")  # no worker takes it meanwhile
        if locked.filter(pk=pk).first() is not None:
            queue.request_cancel(pk)
            Experiment.objects.filter(pk=pk).update(deleted_at=timezone.now())


def restore(pk: int) -> bool:
    """Bring it back, as it was left. False: it is gone for good, or was never deleted."""
    return bool(Experiment.objects.filter(pk=pk, deleted_at__isnull=False).update(deleted_at=None))


def purge(now: datetime | None = None) -> int:
    """Remove for good what was deleted `KEPT_FOR` ago; how many. What a worker still holds waits for its end."""
    limit = (now or timezone.now()) - KEPT_FOR
    _, removed = Experiment.objects.filter(deleted_at__lt=limit, state__in=ENDED).delete()
    count = removed.get(Experiment._meta.label, 0)
    if count:
        log.info("Removed %s experiments that were deleted %s days ago", count, KEPT_FOR.days)
    return count
