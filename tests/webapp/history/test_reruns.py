"""A night that looks slower is measured again once, belongs to its night, and says what it thinks of the suspicion."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.webapp.experiments import make, rows
from tests.webapp.experiments.rows import text_of
from tests.webapp.history.make_nights import SMALL, at_once, day, disturb, night, schedule
from tests.webapp.kept import OfKeptMember
from webapp.accounts.models import Deed, User
from webapp.experiments import ingest, machines, queue, upkeep
from webapp.experiments.models import Experiment, State
from webapp.history import alerts, reruns, series
from webapp.history.models import Change, Digest, Night, Point, Record, Rerun, Schedule, Triage

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]

SLOWER = {"stage_experts": 1.2, "step_us": 1.15}


def first_suspected(planned: Schedule) -> Night:
    """The first night on which the experts, slower since the 10th, are suspected; nothing was asked about it yet."""
    for number in range(20):
        last = night(planned, day(number), **(SLOWER if number >= 10 else {}))
        series.follow(soon(last))
        if Change.objects.filter(suspected__experiment=last.experiment).exists():
            return last
    raise AssertionError("Nothing was suspected.")


@pytest.fixture(scope="class")
def suspicion(kept_member: User) -> Night:
    return first_suspected(schedule(kept_member))


class OfASuspicion(OfKeptMember):
    """Tests that begin where a night is suspected."""

    @pytest.fixture
    def suspected(self, suspicion: Night) -> Night:
        return Night.objects.get(pk=suspicion.pk)


def soon(last: Night) -> Any:
    """When a worker looks, after the night has ended."""
    return last.due_at + timedelta(hours=1)


def look(last: Night) -> Rerun:
    reruns.look(soon(last))
    return Rerun.objects.get()


def measure(rerun: Rerun, name: str = rows.MACHINE["name"], seed: int = 1, **slower: float) -> None:
    """Have a worker carry the re-run out."""
    row = queue.claim("default", machines.register_this(rows.MACHINE | {"name": name, "fingerprint": name}, "default"))
    assert row == rerun.experiment
    queue.begin_ingest(queue.fence_of(row))
    ingest.ingest(queue.fence_of(row), make.result(make.experiment(**SMALL), 5), row.machine)
    disturb(row, [seed], **slower)


def opinions() -> dict[str, str]:
    return dict(Change.objects.values_list("series__metric", "opinion"))


class TestAsking(OfASuspicion):
    def test_the_same_experiment_is_queued_again_as_a_rerun_of_its_night(self, suspected: Night) -> None:
        rerun = look(suspected)
        again, measured = rerun.experiment, suspected.experiment
        assert again
        assert measured
        assert (again.document, again.pool, again.author) == (measured.document, measured.pool, measured.author)
        assert (again.tags, again.labels) == (["re-run"], {"rerun-of-night": f"{suspected.due_at:%Y-%m-%d %H:%M}"})
        assert again.state == State.QUEUED
        assert str(Deed.objects.latest("pk")) == f"schedule Fusion queued {again}"

    def test_the_page_of_the_schedule_leads_to_it(
        self, suspected: Night, signed_in: Any, django_assert_max_num_queries: Any
    ) -> None:
        rerun = look(suspected)
        assert rerun.experiment
        with django_assert_max_num_queries(7):
            response = signed_in.get(f"/schedules/{suspected.schedule_id}/")
        assert "It looked slower, so it was measured again ." in text_of(response)
        assert f'href="{rerun.experiment.get_absolute_url()}"' in response.text

    def test_it_is_asked_for_once_whoever_looks_however_often(self, suspected: Night) -> None:
        look(suspected)
        twin = Night.objects.select_related("schedule__owner", "experiment__record").get(pk=suspected.pk)
        assert reruns.ask(twin) is None
        series.analyse(Record.objects.latest("at").group, soon(suspected))
        look(suspected)
        assert Experiment.objects.filter(tags=["re-run"]).count() == 1

    @pytest.mark.parametrize("changes", [{"is_on": False}, {"measures_again": False}, {"owner": None}])
    def test_not_while_the_schedule_is_off_or_does_not_want_it_or_has_no_owner(
        self, suspected: Night, changes: dict[str, Any]
    ) -> None:
        Schedule.objects.update(**changes)
        reruns.look(soon(suspected))
        assert not Rerun.objects.exists()

    def test_not_for_a_disabled_owner(self, suspected: Night, member: Any) -> None:
        member.is_active = False
        member.save()
        reruns.look(soon(suspected))
        assert not Rerun.objects.exists()

    def test_not_once_the_next_night_is_due(self, suspected: Night) -> None:
        reruns.look(suspected.due_at + timedelta(days=1))
        assert not Rerun.objects.exists()

    def test_not_for_what_somebody_decided_or_another_series_confirmed(self, suspected: Night) -> None:
        change = Change.objects.filter(suspected__isnull=False).first()
        assert change
        series.decide(change, Triage.EXPECTED, "", None, soon(suspected))
        reruns.look(soon(suspected))
        assert not Rerun.objects.exists()
        series.analyse(change.series.group, soon(suspected))
        assert not Change.objects.filter(suspected__isnull=False).exists()

    def test_what_can_be_queued_no_more_is_told(self, suspected: Night, signed_in: Any) -> None:
        Experiment.objects.filter(pk=suspected.experiment_id).update(
            document=suspected.experiment.document | {"vary": {"field": "moon", "values": [1]}}  # type: ignore[union-attr]
        )
        rerun = look(suspected)
        assert rerun.experiment is None
        assert rerun.silent_because.startswith("it could not be queued: ")
        change = rerun.changes.first()
        assert change
        text = text_of(signed_in.get(change.series.get_absolute_url()))
        assert f"The re-run of its night says nothing: {rerun.silent_because}." in text


def test_what_became_faster_is_not_measured_again(planned: Schedule) -> None:
    for number in range(20):
        last = night(planned, day(number), stage_experts=0.8 if number >= 10 else 1.0)
        series.follow(soon(last))
        reruns.look(soon(last))
    assert Change.objects.filter(ratio__lt=1, confirmed_at__isnull=False).exists()
    assert not Rerun.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_workers_that_look_at_the_same_moment_queue_and_hear_one_rerun(planned: Schedule) -> None:
    suspected = first_suspected(planned)
    at_once(lambda: reruns.look(soon(suspected)))
    assert Rerun.objects.count() == Experiment.objects.filter(tags=["re-run"]).count() == 1
    measure(Rerun.objects.get(), **SLOWER)
    at_once(lambda: reruns.look(soon(suspected)))
    assert opinions()["stage.experts"] == "confirms"


class TestHearing(OfASuspicion):
    def test_one_at_the_new_level_confirms_and_is_told_with_its_time(self, suspected: Night, signed_in: Any) -> None:
        rerun = look(suspected)
        change = rerun.changes.get(series__metric="stage.experts")
        assert "Its night is being measured again." in text_of(signed_in.get(change.series.get_absolute_url()))
        measure(rerun, **SLOWER)
        rerun = look(suspected)
        assert rerun.measured_at
        assert opinions()["stage.experts"] == "confirms"
        change.refresh_from_db()
        assert change.confirmed_at == soon(suspected)
        alerts.look(soon(suspected))
        digest = Digest.objects.get()
        assert f"confirmed by a re-run at {rerun.measured_at:%H:%M} UTC" in digest.text
        assert "Labels, commit and versions of the re-run are those of the last good night." in digest.text
        text = text_of(signed_in.get(change.series.get_absolute_url()))
        assert f"at {rerun.measured_at:%H:%M} UTC measured the new level, too, and confirmed it. Labels," in text

    def test_one_at_the_old_level_keeps_the_next_night_from_confirming_but_not_the_one_after(
        self, suspected: Night
    ) -> None:
        rerun = look(suspected)
        measure(rerun, stage_experts=0.97, step_us=0.97)
        look(suspected)
        assert opinions()["stage.experts"] == "doubts"
        for days, is_confirmed in ((1, False), (2, True)):
            last = night(suspected.schedule, suspected.due_at + timedelta(days=days), **SLOWER)
            series.follow(soon(last))
            change = Change.objects.get(series__metric="stage.experts")
            assert (change.confirmed_at is not None) == is_confirmed

    def test_one_between_both_levels_leaves_it_to_the_next_night(self, suspected: Night, signed_in: Any) -> None:
        rerun = look(suspected)
        measure(rerun, stage_experts=1.06, step_us=1.05)
        look(suspected)
        change = Change.objects.get(series__metric="stage.experts")
        assert (change.opinion, change.confirmed_at) == ("undecided", None)
        text = text_of(signed_in.get(change.series.get_absolute_url()))
        assert "UTC neither confirmed it nor spoke against it; a further night decides." in text
        last = night(suspected.schedule, suspected.due_at + timedelta(days=1), **SLOWER)
        series.follow(soon(last))
        change.refresh_from_db()
        assert change.confirmed_at == soon(last)

    def test_it_is_no_night_of_its_own(self, suspected: Night) -> None:
        points = Point.objects.count()
        measure(look(suspected), **SLOWER)
        look(suspected)
        series.follow(soon(suspected))
        assert (Point.objects.count(), Record.objects.filter(experiment__tags=["re-run"]).count()) == (points, 0)

    def test_it_names_what_the_worker_could_not_go_back_to(self, suspected: Night, signed_in: Any) -> None:
        rerun = look(suspected)
        Record.objects.update(versions={"torch": "2.12.0"})
        measure(rerun, **SLOWER)
        row = rerun.experiment
        assert row
        Experiment.objects.filter(pk=row.pk).update(result={"environment": {"versions": {"torch": "2.13.0"}}})
        look(suspected)
        page = signed_in.get(Change.objects.get(series__metric="stage.experts").series.get_absolute_url())
        text = text_of(page)
        assert "Workers can't go back to the last good night (torch 2.12.0 → 2.13.0)" in text
        assert "The last good night, Mar 11, measured torch 2.12.0." in text

    @pytest.mark.parametrize(
        ("how", "sentence"),
        [
            ("moon", "it was measured on another class of machine, moon"),
            ("failed", "it failed"),
            ("canceled", "it was canceled"),
            ("deleted", "it was deleted"),
            ("night", "its night was deleted"),
            ("later", "a later night was there before it"),
        ],
    )
    def test_one_that_has_nothing_to_say_leaves_it_to_the_next_night(
        self, suspected: Night, how: str, sentence: str
    ) -> None:
        rerun = look(suspected)
        row = rerun.experiment
        assert row
        if how == "moon":
            measure(rerun, name="moon", **SLOWER)
        elif how in ("failed", "canceled"):
            taken = queue.claim("default")
            assert taken == row
            rows.ended(taken, how)
        elif how == "deleted":
            upkeep.delete(row.pk)
        elif how == "night":
            Experiment.objects.filter(pk=suspected.experiment_id).delete()
        else:
            later = night_queued_before(suspected, row)
            series.follow(soon(later))
        rerun = look(suspected)
        assert (rerun.silent_because, rerun.measured_at) == (sentence, None)
        assert rerun.judged_at
        assert set(opinions().values()) <= {""}
        row.refresh_from_db()
        assert row.is_ended

    def test_it_is_waited_for(self, suspected: Night) -> None:
        look(suspected)
        assert look(suspected).judged_at is None

    def test_it_is_heard_once(self, suspected: Night) -> None:
        measure(look(suspected), **SLOWER)
        heard = look(suspected)
        reruns.hear(heard.pk, soon(suspected) + timedelta(hours=1))
        assert look(suspected).judged_at == soon(suspected)


def night_queued_before(suspected: Night, row: Experiment) -> Night:
    """The next night, which ended while ``row`` still waits."""
    Experiment.objects.filter(pk=row.pk).update(pool="elsewhere")
    return night(suspected.schedule, suspected.due_at + timedelta(days=1), **SLOWER)
