"""Thinning old step samples to summaries, once a night, a few experiments at a time.

Every worker looks every few seconds. Whoever comes first in a night writes its row; then each look takes one batch
away, in one transaction with the row's figures, until nothing is left. So a kill loses nothing and doubles nothing, no
lock is held for long, and no result is read. While something is measured nothing is thinned, unless that goes on for
`PATIENCE`.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from webapp.experiments import thinning
from webapp.experiments.models import HELD, Experiment, Kind, State
from webapp.experiments.thinning import Size
from webapp.history import nights, reruns
from webapp.history.models import Change, Record, Thinning

#: Experiments that one transaction thins.
BATCH = 10
PATIENCE = timedelta(hours=12)
#: Tags that nobody chose: they keep no steps.
AUTOMATIC = [nights.TAG, reruns.TAG]

log = logging.getLogger(__name__)


def look(now: datetime | None = None) -> None:
    """Go on with this night's thinning. Safe to run twice at once and at any time."""
    now = now or timezone.now()
    if not settings.MOESCOPE_KEEP_STEPS_DAYS:
        return
    night, _ = Thinning.objects.get_or_create(night=now.date(), defaults={"began_at": now})
    if night.ended_at is not None or (_is_busy() and now - night.began_at < PATIENCE):
        return
    with transaction.atomic():
        mine = Thinning.objects.filter(pk=night.pk, ended_at=None).select_for_update(skip_locked=True).first()
        if mine is not None:
            _go_on(mine, now)


def _is_busy() -> bool:
    return Experiment.objects.filter(state__in=HELD).exists()


def _go_on(night: Thinning, now: datetime) -> None:
    old = before(night.began_at, settings.MOESCOPE_KEEP_STEPS_DAYS)
    taken = thinning.thin(thinnable(old), BATCH, now)
    night.experiments += taken.experiments
    night.runs += taken.runs
    night.num_bytes += taken.num_bytes
    if taken.experiments < BATCH:
        night.ended_at = now
        log.info("Thinned the steps of %s experiments", night.experiments)
    night.save()


def before(now: datetime, days: int) -> datetime:
    return now - timedelta(days=days)


def thinnable(old: datetime) -> QuerySet[Experiment]:
    """Experiments that ended before ``old`` and whose steps nobody needs: without a tag of somebody's choice, no first
    night of its series, and no night beside a change, which decisions and digests lead to."""
    beside = Change.objects.values("first"), Change.objects.values("last_before")
    baselines = Record.objects.order_by("group", "at", "pk").distinct("group").values("pk")
    kept = Record.objects.filter(Q(pk__in=beside[0]) | Q(pk__in=beside[1]) | Q(pk__in=baselines))
    ended = Experiment.objects.visible().filter(kind=Kind.EXPERIMENT, state=State.DONE, finished_at__lt=old)
    return ended.filter(thinned_at=None, tags__contained_by=AUTOMATIC).exclude(pk__in=kept.values("experiment"))


def thin_all(old: datetime, now: datetime) -> Size:
    """Everything at once, in the same small transactions; what that was."""
    size = Size()
    while (taken := thinning.thin(thinnable(old), BATCH, now)).experiments:
        size += taken
    return size
