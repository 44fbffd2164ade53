"""Telling the team, once, what became slower: one digest a night and group, to every address that the settings name.

What can't be delivered is kept and tried again, later each time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from webapp.accounts import mail
from webapp.experiments import attendant
from webapp.history import reruns, versions, webhooks, wording
from webapp.history.detection import Opinion
from webapp.history.models import Change, Delivery, Digest, Group, Record, Triage
from webapp.history.series import is_same_event

FIRST_PAUSE, LONGEST_PAUSE = timedelta(minutes=1), timedelta(hours=6)
#: About six days.
MOST_TRIES = 30

log = logging.getLogger(__name__)


def look(now: datetime | None = None) -> None:
    """Write the digests that are due and send what is to be sent. Safe to run twice at once."""
    now = now or timezone.now()
    told_tonight = Group.objects.filter(digests__night=now.date())
    for group in Group.objects.filter(series__changes__in=_untold()).exclude(pk__in=told_tonight).distinct():
        attendant.done(partial(compose, group, now))
    due = Delivery.objects.filter(sent_at=None, next_try_at__lte=now, tries__lt=MOST_TRIES)
    for delivery in due.select_related("digest"):
        attendant.done(partial(deliver, delivery, now))


def channels() -> list[str]:
    return [*settings.MOESCOPE_ALERT_MAIL, *settings.MOESCOPE_ALERT_WEBHOOKS]


@transaction.atomic
def compose(group: Group, now: datetime) -> Digest | None:
    """One digest of all that was confirmed and nobody was told. None: it belongs to an event that was told before, or
    tonight's digest is out already."""
    Group.objects.select_for_update().get(pk=group.pk)
    beside = ("series", "first", "last_before", "rerun")
    untold = list(_untold().filter(series__group=group).select_related(*beside))
    place = {pk: index for index, pk in enumerate(Record.objects.filter(group=group).values_list("pk", flat=True))}
    told = list(Change.objects.filter(series__group=group, told_at__isnull=False))
    known = [change for change in untold if any(is_same_event(change, other, place) for other in told)]
    new = [change for change in untold if change not in known]
    Change.objects.filter(pk__in=[change.pk for change in known]).update(told_at=now)
    if not new or group.digests.filter(night=now.date()).exists():
        return None
    digest = _written(group, new, now)
    Change.objects.filter(pk__in=[change.pk for change in new]).update(told_at=now)
    Delivery.objects.bulk_create(
        Delivery(digest=digest, channel=channel, next_try_at=now) for channel in dict.fromkeys(channels())
    )
    return digest


def deliver(delivery: Delivery, now: datetime) -> bool:
    """Try once. Whoever moves the next try first is who sends, so two workers don't send twice."""
    pause = min(FIRST_PAUSE * 2**delivery.tries, LONGEST_PAUSE)
    mine = Delivery.objects.filter(pk=delivery.pk, sent_at=None, tries=delivery.tries)
    if not mine.update(tries=F("tries") + 1, next_try_at=now + pause):
        return False
    failure = _send(delivery.digest, delivery.channel)
    if failure:
        log.warning("Digest %s is not delivered yet: %s", delivery.digest_id, failure)
    Delivery.objects.filter(pk=delivery.pk).update(sent_at=None if failure else now, failure=failure)
    return not failure


def _untold() -> QuerySet[Change]:
    return Change.objects.filter(confirmed_at__isnull=False, told_at=None, state=Triage.NEW, ratio__gt=1)


def _written(group: Group, changes: Sequence[Change], now: datetime) -> Digest:
    slower = [
        wording.Slower(
            metric=change.series.metric,
            variant=change.series.variant,
            condition=change.series.condition,
            ratio=change.ratio,
            p_value=change.p_value,
            first=change.first.at,
            address=f"{settings.MOESCOPE_URL}{change.series.get_absolute_url()}",
            confirmed_by=reruns.confirmed_by(change),
        )
        for change in changes
    ]
    earliest = min(changes, key=lambda change: change.first.at)
    again = dict.fromkeys(reruns.about_environment(c) for c in changes if c.opinion == Opinion.CONFIRMS)
    new = versions.differences(earliest.last_before.versions, earliest.first.versions)
    return Digest.objects.create(
        group=group,
        night=now.date(),
        subject=wording.subject(str(group), slower)[:300],
        text=wording.text(str(group), slower, new, "\n".join(again)),
        facts=wording.facts(str(group), slower, new),
    )


def _send(digest: Digest, channel: str) -> str:
    """Empty, or why it could not be sent."""
    if "://" not in channel:
        sent = mail.send(digest.subject, digest.text, channel)
        return "" if sent else "The mail server did not take it."
    try:
        text = f"{digest.subject}\n{digest.text}"
        webhooks.post(channel, webhooks.body(channel, text, digest.facts), settings.MOESCOPE_ALERT_HOSTS)
    except webhooks.Refused as refused:
        return str(refused)
    return ""
