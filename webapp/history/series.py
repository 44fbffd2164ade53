"""From finished experiments to series and their changes. A group is analysed when it gets a night or loses one.

An experiment is part of the history if a schedule queued it or it has labels, so that one of a kind doesn't fill it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from webapp.experiments import attendant
from webapp.experiments.models import Experiment, Kind, Run, State
from webapp.history import metrics, versions
from webapp.history.detection import ChangePoint, Opinion, change_points, confirmed, is_same_step, suspected
from webapp.history.models import Change, Group, Point, Record, Series, Triage
from webapp.history.trend import week_change

#: Nights that an analysis looks at, and that a list draws.
LOOKED_AT, DRAWN = 400, 60
#: Fields of a change that an analysis writes, and those that say what a person decided.
ANALYSED = ("first_id", "last_before_id", "ratio", "p_value", "confirmed_at", "suspected_id")
DECIDED = ("state", "note", "by_id", "decided_at")


def follow(now: datetime | None = None) -> None:
    """Take up what has ended since the last look, and analyse again where experiments were deleted or brought back.
    Safe to run twice at once."""
    now = now or timezone.now()
    ended = Experiment.objects.visible().filter(kind=Kind.EXPERIMENT, state=State.DONE, record=None, rerun=None)
    wanted = ended.filter(Q(night__isnull=False) | ~Q(labels={})).order_by("finished_at", "pk")
    for pk in wanted.values_list("pk", flat=True):
        attendant.done(partial(take_up, pk, now))
    for group in Group.objects.filter(Q(pk__in=_lost().values("group")) | Q(pk__in=_back().values("group"))):
        attendant.done(partial(analyse, group, now))


def _lost() -> QuerySet[Record]:
    """Records that count though their experiments were deleted; the index of what is deleted finds these few."""
    return Record.objects.filter(is_counted=True, experiment__deleted_at__isnull=False)


def _back() -> QuerySet[Record]:
    """Records that don't count though their experiments were brought back; few as well."""
    return Record.objects.filter(is_counted=False, experiment__deleted_at=None)


def fingerprint(document: Mapping[str, Any]) -> str:
    """A short hash of what is measured: base, corners, measure and which variable varies, but not its values, so that a
    variant more begins no new history."""
    vary = document["vary"]
    measured = {name: document[name] for name in ("base", "conditions", "measure")}
    text = json.dumps(measured | {"vary": vary and vary["field"]}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@transaction.atomic
def take_up(pk: int, now: datetime) -> None:
    """Write the experiment's numbers into its series, once, and analyse them."""
    row = Experiment.objects.select_related("machine", "night").get(pk=pk)
    assert row.machine
    assert row.finished_at
    assert row.result
    night = getattr(row, "night", None)
    group, _ = Group.objects.update_or_create(
        fingerprint=fingerprint(row.document), machine=row.machine.name, defaults={"title": row.title}
    )
    at = night.due_at if night else row.finished_at
    facts = {"group": group, "at": at, "versions": versions.of_experiment(row.labels, row.result)}
    record, is_first = Record.objects.get_or_create(experiment=row, defaults=facts)
    if is_first:
        _write_points(group, record)
        analyse(group, now)


def _write_points(group: Group, record: Record) -> None:
    found = numbers_of(record.experiment)
    wanted = [Series(group=group, variant=v, condition=c, metric=m) for (v, c, m) in found]
    Series.objects.bulk_create(wanted, ignore_conflicts=True)
    keys = {(one.variant, one.condition, one.metric): one for one in group.series.all()}
    Point.objects.bulk_create(
        Point(series=keys[key], record=record, run=run, value=value) for key, (run, value) in found.items()
    )


def numbers_of(row: Experiment) -> dict[tuple[str, str, str], tuple[Run, float]]:
    """The numbers of a finished experiment and their runs, by variant, condition and metric."""
    runs = Run.objects.filter(experiment=row, summary__isnull=False).only("variant", "condition", "summary")
    return {
        (run.variant, run.condition, metric): (run, value)
        for run in runs
        if run.summary
        for metric, value in metrics.numbers(run.summary).items()
    }


@transaction.atomic
def analyse(group: Group, now: datetime) -> None:
    """Find the changes of all series of ``group`` anew, in a constant number of queries."""
    hold(group)
    # what is deleted or brought back from here on is for the next look to see
    _lost().filter(group=group).update(is_counted=False)
    _back().filter(group=group).update(is_counted=True)
    records = list(group.records.filter(is_counted=True).order_by("-at", "-pk")[:LOOKED_AT])[::-1]
    place = {record.pk: index for index, record in enumerate(records)}
    known = _by_series(Change.objects.filter(series__group=group).select_related("first", "rerun"))
    values = nights_of(place)
    rows, found = [], []
    for row in group.series.all():
        nights = values.get(row.pk, [])
        _describe(row, [value for _, value in nights])
        rows.append(row)
        found += _changes(row, nights, known.get(row.pk, []), records, now)
    Series.objects.bulk_update(rows, ("recent", "nights", "week"))
    _keep(group, found, place)


def hold(group: Group) -> None:
    """Until the end of the transaction: what speaks about a group's changes does so one after the other."""
    Group.objects.select_for_update().get(pk=group.pk)


def nights_of(place: Mapping[int, int]) -> dict[int, list[tuple[int, float]]]:
    """By series, the records and values of its nights in order. ``place``: each record's among the nights."""
    points = Point.objects.filter(record__in=place).values_list("series", "record", "value")
    by_series = groupby(sorted(points, key=lambda one: (one[0], place[one[1]])), key=lambda one: one[0])
    return {pk: [(record, value) for _, record, value in nights] for pk, nights in by_series}


def _describe(row: Series, values: Sequence[float]) -> None:
    row.recent, row.nights, row.week = values[-DRAWN:], len(values), week_change(values)


def _changes(
    row: Series, nights: Sequence[tuple[int, float]], known: Sequence[Change], records: Sequence[Record], now: datetime
) -> list[Change]:
    """The changes of a series: those that are known with what is new of them, and new ones, not saved yet."""
    values = [value for _, value in nights]
    where = {record: index for index, (record, _) in enumerate(nights)}
    _leave_deleted(known, where, records)
    tonight = change_points(values)
    borne_out = confirmed(values, tonight, change_points(values[:-1]), _doubted(known, nights, where))
    suspicion = suspected(tonight, borne_out)
    left = [change for change in known if change.first_id in where]
    found = []
    for point in tonight:
        change = next((one for one in left if is_same_step(point, _point(one, where))), None)
        if change is None:
            change = Change(series=row, state=Triage.NEW)
        else:
            left.remove(change)
        if change.state == Triage.NEW:
            change.first_id = nights[point.index][0]
        if start := where[change.first_id]:
            change.last_before_id = nights[start - 1][0]
        change.ratio, change.p_value = point.ratio, point.p_value
        if point in borne_out and change.confirmed_at is None:
            change.confirmed_at = now
        is_open = change.confirmed_at is None and change.state == Triage.NEW
        change.suspected_id = nights[-1][0] if point == suspicion and is_open else None
        found.append(change)
    return found


def _doubted(
    known: Iterable[Change], nights: Sequence[tuple[int, float]], where: Mapping[int, int]
) -> list[ChangePoint]:
    """What the re-run of the night before the last one did not bear out."""
    before = nights[-2][0] if len(nights) > 1 else None
    return [
        _point(change, where)
        for change in known
        if change.opinion == Opinion.DOUBTS and change.rerun and change.rerun.record_id == before
        if change.first_id in where
    ]


def _leave_deleted(known: Iterable[Change], where: Mapping[int, int], records: Sequence[Record]) -> None:
    """Let changes whose first night was deleted begin with the night after it: they would go with its experiment, and
    with them what was told and decided."""
    for change in known:
        if change.first_id not in where and records and records[0].at <= change.first.at:
            later = (record.pk for record in records if record.at >= change.first.at and record.pk in where)
            change.first_id = next(later, change.first_id)


def _point(change: Change, where: Mapping[int, int]) -> ChangePoint:
    return ChangePoint(where[change.first_id], change.ratio, change.p_value)


def _keep(group: Group, found: Sequence[Change], place: Mapping[int, int]) -> None:
    """Save them. What is found no longer goes, unless somebody was told of it or said something about it. A new one
    that belongs to a step about which somebody decided takes that decision: nobody is asked twice."""
    gone = Change.objects.filter(series__group=group, state=Triage.NEW, told_at=None)
    gone.exclude(pk__in=[change.pk for change in found if change.pk]).delete()
    decided = Change.objects.filter(series__group=group).exclude(state=Triage.NEW).values(*ANALYSED, *DECIDED)
    earlier = [Change(**values) for values in decided]
    new = [change for change in found if change.pk is None]
    for change in new:
        like = next((other for other in earlier if is_same_event(change, other, place)), None)
        for name in DECIDED if like else ():
            setattr(change, name, getattr(like, name))
    # nobody asks again about an event that another series has confirmed, or that somebody knows of
    settled = [*earlier, *(change for change in found if change.confirmed_at is not None)]
    for change in found:
        if change.suspected_id and any(is_same_event(change, other, place) for other in settled):
            change.suspected_id = None
    Change.objects.bulk_create(new)
    Change.objects.bulk_update([change for change in found if change not in new], ANALYSED)


def is_same_event(one: Change, other: Change, place: Mapping[int, int]) -> bool:
    """Whether changes of two series of a group come from the same cause: the same direction at nearly the same night.
    ``place``: each record's among the nights."""
    places = place.get(one.first_id), place.get(other.first_id)
    if None in places:
        return False
    points = [ChangePoint(at, c.ratio, c.p_value) for at, c in zip(places, (one, other), strict=True)]  # type: ignore[arg-type]
    return is_same_step(*points)


def decide(change: Change, state: Triage, note: str, by: Any, now: datetime) -> int:
    """Say what a change is, and with it every change of the same event that nobody decided about; how many."""
    records = Record.objects.filter(group=change.series.group_id).values_list("pk", flat=True)
    place = {pk: index for index, pk in enumerate(records)}
    others = Change.objects.filter(series__group=change.series.group_id, state=Triage.NEW).exclude(pk=change.pk)
    same = [other.pk for other in others if is_same_event(change, other, place)]
    return Change.objects.filter(pk__in=[change.pk, *same]).update(state=state, note=note, by=by, decided_at=now)


def _by_series(changes: Any) -> dict[int, list[Change]]:
    found: dict[int, list[Change]] = {}
    for change in changes:
        found.setdefault(change.series_id, []).append(change)
    return found
