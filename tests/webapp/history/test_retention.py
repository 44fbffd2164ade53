"""Old steps are thinned once a night, in batches; what somebody needs is kept, and no number of the history changes."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import numpy as np
import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.utils import timezone

from tests.webapp.experiments.rows import done, run, text_of
from tests.webapp.history.make_nights import at_once, day, night, nights
from webapp.experiments import thinning
from webapp.experiments.models import Experiment, Run, StageSeries
from webapp.experiments.thinning import Size
from webapp.history import alerts, retention, series, series_page
from webapp.history.models import Change, Digest, Record, Schedule, Series, Thinning

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]

SLOWER = {"stage_experts": 1.12, "step_us": 1.1}
#: When everything that tests make counts as old.
LATER = day(400)
OLD = LATER - timedelta(days=30)


@pytest.fixture(autouse=True)
def thirty_days(settings: Any) -> None:
    settings.MOESCOPE_KEEP_STEPS_DAYS = 30


def aged() -> None:
    """Let everything have ended on the day before `OLD`."""
    Experiment.objects.filter(finished_at__isnull=False).update(finished_at=OLD - timedelta(days=1))


def thinned() -> set[int]:
    return set(Experiment.objects.exclude(thinned_at=None).values_list("pk", flat=True))


class TestWhatIsKept:
    def test_nights_go_but_for_the_first_and_those_beside_a_change(self, planned: Schedule) -> None:
        nights(planned, 0, 18, from_night=10, **SLOWER)
        aged()
        retention.thin_all(OLD, LATER)
        kept = Record.objects.filter(experiment__thinned_at=None).values_list("at", flat=True)
        beside = {change.first.at for change in Change.objects.all()}
        beside |= {change.last_before.at for change in Change.objects.all()}
        assert {day(9), day(10)} <= beside
        assert set(kept) == {day(0), *beside}

    def test_what_somebody_tagged_stays_whatever_else_it_is_tagged(self, member: Any) -> None:
        tags = [[], ["nightly"], ["re-run"], ["nightly", "paper"], ["baseline"]]
        made = [done(member) for _ in tags]
        for row, chosen in zip(made, tags, strict=True):
            Experiment.objects.filter(pk=row.pk).update(tags=chosen)
        aged()
        retention.thin_all(OLD, LATER)
        assert thinned() == {row.pk for row in made[:3]}

    def test_what_is_younger_deleted_or_not_done_stays(self, member: Any) -> None:
        young, deleted = done(member), done(member)
        run(member)
        aged()
        Experiment.objects.filter(pk=young.pk).update(finished_at=OLD)
        Experiment.objects.filter(pk=deleted.pk).update(deleted_at=LATER)
        assert not retention.thinnable(OLD).exists()


class TestNight:
    @pytest.fixture
    def many(self, member: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(retention, "BATCH", 2)
        for _ in range(5):
            done(member)
        aged()

    def test_each_look_takes_a_batch_until_nothing_is_left_and_then_none_that_night(
        self, many: None, member: Any
    ) -> None:
        whole = thinning.size_of(retention.thinnable(OLD))
        counts = []
        for seconds in range(0, 50, 10):
            retention.look(LATER + timedelta(seconds=seconds))
            counts.append(len(thinned()))
        assert counts == [2, 4, 5, 5, 5]
        row = Thinning.objects.get()
        assert Size(row.experiments, row.runs, row.num_bytes) == whole
        assert row.ended_at == LATER + timedelta(seconds=20)
        done(member)
        aged()
        retention.look(LATER + timedelta(hours=1))
        assert len(thinned()) == 5
        retention.look(LATER + timedelta(days=1))
        assert len(thinned()) == 6

    @pytest.mark.django_db(transaction=True)
    def test_workers_that_look_at_the_same_moment_take_each_experiment_once(self, many: None) -> None:
        whole = thinning.size_of(retention.thinnable(OLD))
        for seconds in range(0, 40, 10):
            at_once(lambda seconds=seconds: retention.look(LATER + timedelta(seconds=seconds)))  # type: ignore[misc]
        row = Thinning.objects.get()
        assert (Size(row.experiments, row.runs, row.num_bytes), row.ended_at is None) == (whole, False)

    def test_a_batch_that_was_killed_is_done_by_the_next_look(
        self, many: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps = StageSeries.objects.count()
        Thinning.objects.create(night=LATER.date(), began_at=LATER)

        def die(*args: Any) -> None:
            raise SystemExit

        with monkeypatch.context() as kill:
            kill.setattr(Thinning, "save", die)  # the last thing that a batch does
            with pytest.raises(SystemExit):
                retention.look(LATER)
        assert (len(thinned()), StageSeries.objects.count()) == (0, steps)
        for seconds in (10, 20, 30):
            retention.look(LATER + timedelta(seconds=seconds))
        row = Thinning.objects.get()
        assert (row.experiments, len(thinned()), StageSeries.objects.count()) == (5, 5, 0)

    def test_while_something_is_measured_it_waits_but_not_forever(self, many: None, member: Any) -> None:
        run(member)
        retention.look(LATER)
        retention.look(LATER + timedelta(hours=11))
        assert not thinned()
        retention.look(LATER + timedelta(hours=12))
        assert len(thinned()) == 2

    def test_nothing_is_thinned_unless_it_is_asked_for(self, many: None, settings: Any) -> None:
        settings.MOESCOPE_KEEP_STEPS_DAYS = 0
        retention.look(LATER)
        assert not Thinning.objects.exists()


@pytest.mark.parametrize("seed", range(4))
def test_no_number_of_the_history_changes(planned: Schedule, signed_in: Any, settings: Any, seed: int) -> None:
    settings.MOESCOPE_ALERT_MAIL = ["team@example.org"]
    random = np.random.default_rng(seed)
    begins, size = int(random.integers(6, 14)), float(random.choice([0.85, 1.0, 1.1, 1.25]))
    for number in range(22):
        slower = {"stage_experts": size, "step_us": (1 + size) / 2} if number >= begins else {}
        made = night(planned, day(number), seed=seed, **slower)
        if random.random() < 0.2:
            Experiment.objects.filter(pk=made.experiment_id).update(tags=["nightly", "kept"])
        series.follow(day(number) + timedelta(hours=1))
    aged()
    before = everything(signed_in)
    assert retention.thin_all(OLD, LATER).experiments > 8
    series.analyse(Record.objects.latest("at").group, day(22))
    assert everything(signed_in) == before


def everything(signed_in: Any) -> list[Any]:
    """All that the history says: series and their points, changes, pages with intervals and bands, and the digest."""
    pages = ["/history/?steady=1", *(one.get_absolute_url() for one in Series.objects.order_by("pk"))]
    charts = [series_page.of_series(one)["chart"] for one in Series.objects.order_by("pk")]
    with transaction.atomic():
        alerts.look(day(22))
        digests = list(Digest.objects.values("subject", "text", "facts"))
        transaction.set_rollback(True)
    shown = ("series", "first__at", "last_before__at", "ratio", "p_value", "confirmed_at", "state")
    return [
        list(Series.objects.order_by("pk").values()),
        list(Change.objects.order_by("series", "first__at").values(*shown)),
        list(Run.objects.order_by("pk").values("summary")),
        [text_of(signed_in.get(page)) for page in pages],
        charts,
        digests,
    ]


class TestCommand:
    def said(self, *args: str) -> str:
        out = StringIO()
        call_command("thin", *args, stdout=out)
        return out.getvalue()

    def test_a_dry_run_says_what_would_go_and_changes_nothing(self, member: Any) -> None:
        row = done(member)
        Experiment.objects.update(finished_at=timezone.now() - timedelta(days=31))
        num_bytes = thinning.size_of(Experiment.objects.all()).num_bytes
        sentence = f"4 runs of 1 experiment older than 30 days would lose their steps: {num_bytes:,} bytes ("
        assert self.said("--dry-run").startswith(sentence)
        assert not thinned()
        assert self.said("--days", "40", "--dry-run").startswith("0 runs of 0 experiments older than 40 days")
        assert self.said().startswith(sentence.replace("would lose", "lost"))
        assert thinned() == {row.pk}

    @pytest.mark.parametrize("args", [("--days", "0"), ("--days", "-3"), ()])
    def test_days_that_are_none_are_refused(self, settings: Any, args: tuple[str, ...]) -> None:
        settings.MOESCOPE_KEEP_STEPS_DAYS = 0
        with pytest.raises(CommandError, match=r"^--days: (0|-3) is too few; give 1 or more, or set MOESCOPE_KEEP"):
            call_command("thin", *args)
