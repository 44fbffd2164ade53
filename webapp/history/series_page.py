"""What the pages of the history read, in a constant number of queries each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.core.paginator import Page, Paginator
from django.db.models import Count, F

from webapp.history import metrics, reruns, series_chart, versions, watchdog
from webapp.history.models import CLOSED, Change, Delivery, Point, Series, Triage
from webapp.history.series import DRAWN
from webapp.history.trend import usual_range
from webapp.ui.formatting import change as change_in_words

#: One night is no history yet.
LEAST_NIGHTS = 2
PER_PAGE = 50
#: Nights on the page of a series, and in its table.
SHOWN, LISTED = 400, 60


class Line(NamedTuple):
    """A series in a list, with the change that it is listed for, or None, and its changes' places among the values that
    are drawn."""

    series: Series
    change: Change | None
    marks: list[int]

    @property
    def metric(self) -> str:
        return metrics.name(self.series.metric)

    @property
    def last(self) -> str:
        return metrics.shown(self.series.metric, self.series.recent[-1])

    @property
    def week(self) -> str:
        """``▲ 8.1%``, or ``~`` where the interval holds no change."""
        return in_words(self.series.week)

    @property
    def week_interval(self) -> str:
        return interval(self.series.week)


class Night(NamedTuple):
    """A point as the page shows it. ``versions``: labels and what the environment tells; ``new``: those that differ
    from the night before. ``noise``: the label of its run; empty where that tells nothing."""

    at: datetime
    value: float
    run: int
    experiment: int
    versions: dict[str, str]
    new: dict[str, str]
    noise: str = ""

    @property
    def is_doubtful(self) -> bool:
        return self.noise not in ("", "steady", "unknown")


def in_words(week: Sequence[float]) -> str:
    if not week:
        return "–"
    ratio, low, high = week
    return change_in_words(ratio) if low > 1 or high < 1 else "~"


def interval(week: Sequence[float]) -> str:
    if not week:
        return "two weeks of nights are needed"
    ratio, low, high = (f"{(value - 1) * 100:+.1f}%" for value in week)
    return f"{ratio} against the week before, 95% interval {low} to {high}".replace("-", "−")


def last_night(now: datetime) -> dict[str, Any]:
    """For home: how the latest nights went, and what is wrong with them."""
    lines = watchdog.lines(now)
    return (headline() if lines else {}) | {
        "num_schedules": sum(line.schedule.is_on for line in lines),
        "troubled": [line for line in lines if line.concerns],
    }


def headline() -> dict[str, Any]:
    """How many series are steady, and which one became slower most, by event, of those that are confirmed."""
    slower = Change.objects.exclude(state__in=CLOSED).filter(ratio__gt=1, confirmed_at__isnull=False)
    lines = [Line(change.series, change, []) for change in slower.select_related("series__group", "first")]
    lines.sort(key=lambda line: (not line.series.metric.startswith(metrics.STAGE), -line.change.ratio))  # type: ignore[union-attr]
    num_series = Series.objects.filter(nights__gte=LEAST_NIGHTS).count()
    return {"num_steady": num_series - len({line.series.pk for line in lines}), "slower": lines}


def overview(page: str | None) -> dict[str, Any]:
    """Changed series, the latest and largest first; steady ones only as ``page`` asks for them."""
    shown = Series.objects.filter(nights__gte=LEAST_NIGHTS).select_related("group")
    open_ = Change.objects.exclude(state__in=CLOSED).filter(series__nights__gte=LEAST_NIGHTS)
    changes = list(open_.select_related("series__group", "first"))
    changes.sort(key=lambda change: (change.state != Triage.NEW, -change.first.at.timestamp(), -abs(change.ratio - 1)))
    changed: dict[int, Line] = {}
    for change in changes:
        changed.setdefault(change.series_id, Line(change.series, change, []))
    steady = shown.exclude(pk__in=changed)
    places = _places(Change.objects.filter(series__in=changed))
    return {
        "changed": [line._replace(marks=places.get(pk, [])) for pk, line in changed.items()],
        "num_slower": sum(line.change is not None and line.change.is_slower for line in changed.values()),
        "num_steady": steady.count(),
        "undelivered": Delivery.objects.filter(sent_at=None, tries__gt=0).select_related("digest"),
        "steady": None if page is None else _steady(steady, page),
    }


def _steady(rows: Any, page: str) -> Page[Line]:
    found = Paginator(rows, PER_PAGE).get_page(page)
    found.object_list = [Line(row, None, []) for row in found.object_list]
    return found


def _places(changes: Any) -> dict[int, list[int]]:
    """By series, where its changes stand among the values that are drawn."""
    found: dict[int, list[int]] = {}
    after = (
        changes.filter(
            series__points__record__at__gte=F("first__at"), series__points__record__experiment__deleted_at=None
        )
        .values("pk", "series_id", "series__nights")
        .annotate(nights_since=Count("series__points"))
    )
    for change in after:
        drawn = min(change["series__nights"], DRAWN)
        if change["nights_since"] <= drawn:
            found.setdefault(change["series_id"], []).append(drawn - change["nights_since"])
    return found


def of_series(series: Series) -> dict[str, Any]:
    """The page of one series."""
    nights = _nights(series)
    changes = list(series.changes.select_related("first", "last_before", "by", "rerun").order_by("-first__at"))
    place = {night.experiment: index for index, night in enumerate(nights)}
    at = {change.pk: place[change.first.experiment_id] for change in changes if change.first.experiment_id in place}
    values = [night.value for night in nights]
    low, high = usual_range(values, sorted(set(at.values()))) if values else ([], [])
    return {
        "series": series,
        "name": metrics.name(series.metric),
        "line": Line(series, None, []) if series.recent else None,
        "changes": [_Told(change, *_beside(change, nights, place)) for change in changes],
        "chart": series_chart.trend(nights, low, high, sorted(at.values()), series.metric) if nights else None,
        "nights": [
            (night, metrics.shown(series.metric, night.value), index in at.values())
            for index, night in reversed(list(enumerate(nights)))
        ][:LISTED],
        "states": Triage.choices,
    }


class _Told(NamedTuple):
    """A change with the runs before and after it, or None, and what was new on its first night."""

    change: Change
    before: Night | None
    after: Night | None

    @property
    def rerun_words(self) -> str:
        return reruns.in_words(self.change)


def _beside(change: Change, nights: Sequence[Night], place: Mapping[int, int]) -> tuple[Night | None, Night | None]:
    before, after = (place.get(record.experiment_id) for record in (change.last_before, change.first))
    return None if before is None else nights[before], None if after is None else nights[after]


def _nights(series: Series) -> list[Night]:
    points = (
        Point.objects.filter(series=series, record__experiment__deleted_at=None)
        .order_by("-record__at", "-record")
        .values_list("record__at", "value", "run", "record__experiment", "record__versions", "run__noise__label")[
            :SHOWN
        ]
    )
    nights: list[Night] = []
    for at, value, run, experiment, told, noise in reversed(list(points)):
        differs = versions.differences(nights[-1].versions, told) if nights else {}
        new = {name: after for name, (_, after) in differs.items()}
        nights.append(Night(at, value, run, experiment, told, new, noise or ""))
    return nights
