"""Measuring a night once more, at once, where it looks slower: whether it was the night's bad luck or is a new level.

A re-run belongs to its night. It adds no point to any series and counts as no second night; it is asked what it thinks
of what is suspected, and each change keeps the answer (`detection.opinion`). Workers measure what is installed on them,
so it repeats the present environment, not that of the last good night; pages and digests say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from bench_worker.errors import DoesNotFit
from bench_worker.spec import Experiment as Asked
from bench_worker.spec import SpecError
from webapp.experiments import attendant, memory, queue
from webapp.experiments.models import State
from webapp.history import versions, wording
from webapp.history.detection import ChangePoint, Opinion, opinion
from webapp.history.models import Change, Night, Record, Rerun, Schedule, Triage
from webapp.history.nights import itself
from webapp.history.series import hold, nights_of, numbers_of
from webapp.traces.store import traces_library

TAG = "re-run"
#: A label of the re-run's experiment; its value is the night.
LABEL = "rerun-of-night"


def look(now: datetime | None = None) -> None:
    """Ask for the re-runs that are due, and hear those that have ended. Safe to run twice at once and at any time."""
    now = now or timezone.now()
    for night in Night.objects.filter(experiment__record__in=_open().values("suspected")).select_related(
        "schedule__owner", "experiment__record"
    ):
        if _may_ask(night.schedule, night, now):
            attendant.done(partial(ask, night))
    for rerun in Rerun.objects.filter(judged_at=None):
        attendant.done(partial(hear, rerun.pk, now))


def _open() -> QuerySet[Change]:
    """Suspicions that nobody asked a re-run about."""
    return Change.objects.filter(suspected__rerun=None, suspected__isnull=False, state=Triage.NEW, confirmed_at=None)


def _may_ask(schedule: Schedule, night: Night, now: datetime) -> bool:
    """Once the next night is due, it says more than a re-run of this one."""
    return (
        schedule.is_on
        and schedule.measures_again
        and not schedule.owner_trouble
        and now < schedule.next_due(night.due_at)
        and not schedule.nights.filter(due_at__gt=night.due_at).exists()
    )


@transaction.atomic
def ask(night: Night) -> Rerun | None:
    """Queue the experiment of ``night`` again, in its pool. None: it was asked for already."""
    assert night.experiment
    record, schedule = night.experiment.record, night.schedule
    rerun, is_first = Rerun.objects.get_or_create(record=record)
    if not is_first:
        return None
    try:
        asked = Asked.model_validate(night.experiment.document, context=traces_library())
        memory.check(asked, night.experiment.pool)
    except (SpecError, DoesNotFit) as error:
        rerun.judged_at, rerun.silent_because = timezone.now(), f"it could not be queued: {str(error).rstrip('.')}"
    else:
        rerun.experiment = queue.enqueue(
            asked,
            author=schedule.owner,
            by=itself(schedule),
            pool=night.experiment.pool,
            tags=[TAG],
            labels={LABEL: f"{night.due_at:%Y-%m-%d %H:%M}"},
        )
    rerun.save()
    Change.objects.filter(suspected=record, state=Triage.NEW, confirmed_at=None).update(rerun=rerun, opinion="")
    return rerun


@transaction.atomic
def hear(pk: int, now: datetime) -> None:
    """Let a re-run that has ended say what it thinks, once. One that still waits when its night is no longer the last
    is canceled."""
    rerun = Rerun.objects.select_related("record__group", "experiment__machine").get(pk=pk)
    if rerun.record:
        hold(rerun.record.group)
        rerun.refresh_from_db(fields=["judged_at"])
    if rerun.judged_at is not None:
        return
    row, silent_because = rerun.experiment, _silent_because(rerun)
    if silent_because is None:
        return
    if row is not None and not row.is_ended:
        queue.request_cancel(row.pk)
    if row is not None and not silent_because:
        assert rerun.record
        assert row.result
        labels = {key: word for key, word in row.labels.items() if key != LABEL}
        rerun.versions, rerun.measured_at = versions.of_experiment(labels, row.result), row.finished_at
        _judge(rerun, rerun.record, {key: value for key, (_, value) in numbers_of(row).items()}, now)
    rerun.judged_at, rerun.silent_because = now, silent_because
    rerun.save()


def _silent_because(rerun: Rerun) -> str | None:
    """Why it has nothing to say; empty where it has; None as long as it is on its way."""
    row, record = rerun.experiment, rerun.record
    if record is None:
        return "its night was deleted"
    if row is None or row.deleted_at is not None:
        return "it was deleted"
    if record.group.records.filter(at__gt=record.at).exists():
        return "a later night was there before it"
    if not row.is_ended:
        return None
    if row.state != State.DONE:
        return f"it {'failed' if row.state == State.FAILED else 'was canceled'}"
    assert row.machine
    if row.machine.name != record.group.machine:
        return f"it was measured on another class of machine, {row.machine.name}"
    return ""


def _judge(rerun: Rerun, record: Record, again: Mapping[tuple[str, str, str], float], now: datetime) -> None:
    """Write its opinion of every change that is suspected since ``record``; what it confirms is confirmed."""
    records = record.group.records.filter(is_counted=True).values_list("pk", flat=True)
    nights = nights_of({pk: index for index, pk in enumerate(records)})
    suspicions = Change.objects.filter(suspected=record, state=Triage.NEW, confirmed_at=None).select_related("series")
    for change in suspicions:
        own = nights[change.series_id]
        place = next(index for index, (pk, _) in enumerate(own) if pk == change.first_id)
        measured = again.get((change.series.variant, change.series.condition, change.series.metric))
        if measured is None:
            continue
        point = ChangePoint(place, change.ratio, change.p_value)
        change.opinion = opinion([value for _, value in own], point, measured)
        change.rerun = rerun
        if change.opinion == Opinion.CONFIRMS:
            change.confirmed_at = now
        change.save(update_fields=["opinion", "rerun", "confirmed_at"])


def confirmed_by(change: Change) -> str:
    """``a re-run at 03:12 UTC`` or ``a further night``."""
    if change.opinion == Opinion.CONFIRMS and change.rerun and change.rerun.measured_at:
        return wording.a_rerun(change.rerun.measured_at)
    return wording.A_NIGHT


def about_environment(change: Change) -> str:
    """How what its re-run measured differs from the last good night; empty where it measured nothing."""
    if change.rerun is None or change.rerun.measured_at is None:
        return ""
    return wording.environment(versions.differences(change.last_before.versions, change.rerun.versions))


def in_words(change: Change) -> str:
    """What the page of a series says of its re-run: whole sentences, or nothing where there is none."""
    rerun = change.rerun
    if rerun is None:
        return ""
    if rerun.judged_at is None:
        return "Its night is being measured again."
    if rerun.measured_at is None or not change.opinion:
        return f"The re-run of its night says nothing: {rerun.silent_because or 'it did not measure this'}."
    return f"{wording.of_rerun(Opinion(change.opinion), rerun.measured_at)} {about_environment(change)}"
