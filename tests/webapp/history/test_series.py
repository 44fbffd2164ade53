"""Nights become series; changes are found, confirmed by a further night, and never asked about twice."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.webapp.experiments import make, rows
from tests.webapp.history.make_nights import day, night, nights, schedule
from tests.webapp.kept import OfKeptMember
from webapp.accounts.models import User
from webapp.experiments import upkeep
from webapp.experiments.models import Experiment
from webapp.history import series, versions
from webapp.history.models import Change, Group, Point, Record, Schedule, Series, Triage

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]

#: What is slower in a simulated regression: a stage, and the step with it.
SLOWER = {"stage_experts": 1.12, "step_us": 1.1}


def changes(metric: str = "stage.experts") -> list[Change]:
    return list(Change.objects.filter(series__metric=metric))


class TestFingerprint:
    def test_neither_title_nor_another_variant_begins_a_new_history(self) -> None:
        document = make.experiment().document()
        other = make.experiment(title="Other", vary={"field": "kernels.fusion", "values": ["none"]}).document()
        assert series.fingerprint(document) == series.fingerprint(other)

    @pytest.mark.parametrize(
        "changes",
        [
            {"conditions": [{"concurrency": 1, "prompt_tokens": 16}]},
            {"base": {"model": "olmoe-1b-7b", "workload": {"requests": 4, "output_tokens": 4, "seed": 1}}},
            {"vary": {"field": "kernels.experts", "values": ["deepspeed", "loop"]}},
            {"measure": {"warmup_steps": 1}},
        ],
    )
    def test_what_is_measured_does(self, changes: dict[str, Any]) -> None:
        document, other = make.experiment().document(), make.experiment(**changes).document()
        assert series.fingerprint(document) != series.fingerprint(other)


class TestTakingUp:
    def test_a_night_is_a_point_of_each_series_at_its_due_time_once(self, planned: Schedule) -> None:
        made = night(planned, day(0))
        for _ in range(2):
            series.follow(day(1))
        record = Record.objects.get()
        assert (record.experiment, record.at) == (made.experiment, day(0))
        assert record.group.machine == "AMD EPYC, 2 cores"
        # step time, TTFT and TPOT, and six stages that take time
        assert Series.objects.count() == Point.objects.count() == 9
        point = Point.objects.get(series__metric="stage.experts")
        assert point.value == point.run.summary["stage_us"]["experts"]

    def test_a_single_experiment_is_no_history_but_one_with_labels_is(self, member: Any) -> None:
        rows.done(member)
        labelled = rows.done(member)
        Experiment.objects.filter(pk=labelled.pk).update(labels={"image": "1"})
        series.follow(day(1))
        assert [record.experiment for record in Record.objects.all()] == [labelled]

    def test_what_is_deleted_leaves_the_series_and_comes_back_with_the_next_look(self, planned: Schedule) -> None:
        nights(planned, 0, 2)
        last = Record.objects.get(at=day(2)).experiment_id
        upkeep.delete(last)
        assert self.length_after_a_look() == (2, 2)
        upkeep.restore(last)
        assert self.length_after_a_look() == (3, 3)

    def length_after_a_look(self) -> tuple[int, int]:
        series.follow(day(3))
        row = Series.objects.get(metric="step_us")
        return row.nights, len(row.recent)

    def test_a_look_analyses_only_what_lost_or_got_a_night(
        self, planned: Schedule, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        nights(planned, 0, 1)
        analysed: list[Group] = []
        monkeypatch.setattr(series, "analyse", lambda group, now: analysed.append(group))
        series.follow(day(400))
        assert analysed == []
        upkeep.delete(Record.objects.get(at=day(0)).experiment_id)
        series.follow(day(400))
        assert analysed == [Group.objects.get()]

    def test_a_night_remembers_what_it_measured(self, planned: Schedule) -> None:
        made = night(planned, day(0)).experiment
        assert made
        environment = made.result["environment"] | {"commit": "abc", "versions": {"torch": "2.13.0"}}
        Experiment.objects.filter(pk=made.pk).update(
            labels={"image": "7"}, result=made.result | {"environment": environment}
        )
        series.follow(day(0))
        assert Record.objects.get().versions == {"torch": "2.13.0", "commit": "abc", "image": "7"}

    def test_nights_from_before_versions_were_kept_get_theirs(self, planned: Schedule) -> None:
        nights(planned, 0, 1)
        Experiment.objects.update(labels={"image": "7"})
        Experiment.objects.filter(pk=Record.objects.get(at=day(1)).experiment_id).update(result={"environment": {}})
        Record.objects.update(versions={})
        with connection.cursor() as cursor:
            cursor.execute(import_module("webapp.history.migrations.0004_records_facts").NAME_VERSIONS)
        for record in Record.objects.select_related("experiment"):
            row = record.experiment
            assert row.result is not None
            assert record.versions == versions.of_experiment(row.labels, row.result)

    def test_a_long_history_takes_as_many_queries_as_a_short_one(self, planned: Schedule) -> None:
        counts = []
        for number in range(14):
            made = night(planned, day(number), stage_experts=1.2 if number > 6 else 1.0)
            with CaptureQueriesContext(connection) as queries:
                assert made.experiment
                series.take_up(made.experiment.pk, day(number))
            counts.append(len(queries))
        assert Change.objects.exists()
        assert counts[-1] - counts[1] <= 2  # writing and reading changes


@pytest.fixture(scope="class")
def since_the_tenth(kept_member: User) -> Schedule:
    """Nights 0 to 18, slower from the 10th on."""
    planned = schedule(kept_member)
    nights(planned, 0, 18, from_night=10, **SLOWER)
    return planned


def test_a_step_is_found_at_its_night_and_confirmed_by_a_further_one(planned: Schedule) -> None:
    nights(planned, 0, 9)
    seen = []
    for number in range(10, 20):
        nights(planned, number, number, from_night=10, **SLOWER)
        seen += [(number, change.confirmed_at) for change in changes()]
    (first_seen, unconfirmed), *later = seen
    assert 11 <= first_seen <= 14
    assert unconfirmed is None
    assert later[0][1] == day(first_seen + 1) + timedelta(hours=1)
    (change,) = changes()
    assert (change.first.at, change.last_before.at, change.state) == (day(10), day(9), Triage.NEW)
    assert change.ratio == pytest.approx(1.12, abs=0.02)
    assert set(Change.objects.values_list("series__metric", flat=True)) == {"stage.experts", "step_us"}


class TestAChange(OfKeptMember):
    @pytest.fixture
    def slowed(self, since_the_tenth: Schedule) -> Schedule:
        return Schedule.objects.get(pk=since_the_tenth.pk)

    def test_an_analysis_never_reopens_what_a_person_decided(self, slowed: Schedule, member: Any) -> None:
        for state in Triage.values[1:]:
            series.decide(changes()[0], Triage(state), "a new kernel", member, day(18))
            series.analyse(Group.objects.get(), day(19))
            (change,) = changes()
            assert (change.state, change.note, change.by, change.decided_at) == (state, "a new kernel", member, day(18))
        nights(slowed, 19, 22, from_night=10, **SLOWER)
        assert [(change.state, change.first.at) for change in changes()] == [("noise", day(10))]

    def test_a_decision_outlives_the_nights_on_both_sides_of_its_change(self, slowed: Schedule, member: Any) -> None:
        series.decide(changes()[0], Triage.EXPECTED, "a new kernel", member, day(18))
        for number in (9, 10):  # the last night before it, and its first
            upkeep.delete(Record.objects.get(at=day(number)).experiment_id)
            series.analyse(Group.objects.get(), day(19))
            Experiment.objects.filter(deleted_at__isnull=False).delete()  # what becomes of it after a week
        (change,) = changes()
        assert (change.state, change.note, change.by) == ("expected", "a new kernel", member)
        assert (change.first.at, change.last_before.at) == (day(11), day(8))

    def test_a_decision_holds_for_all_series_of_the_event_also_those_found_later(
        self, slowed: Schedule, member: Any
    ) -> None:
        assert series.decide(changes()[0], Triage.EXPECTED, "", member, day(18)) == 2
        Change.objects.filter(series__metric="step_us").delete()  # as if it had not been found in time
        nights(slowed, 19, 19, from_night=10, **SLOWER)
        assert set(Change.objects.values_list("series__metric", "state")) == {
            ("stage.experts", "expected"),
            ("step_us", "expected"),
        }

    def test_a_step_back_is_an_event_of_its_own(self, slowed: Schedule, member: Any) -> None:
        series.decide(changes()[0], Triage.EXPECTED, "", member, day(18))
        nights(slowed, 19, 26)
        assert [(c.first.at, c.is_slower, c.state) for c in changes()] == [
            (day(19), False, "new"),
            (day(10), True, "expected"),
        ]

    def test_what_is_found_no_longer_goes_unless_somebody_was_told(self, slowed: Schedule) -> None:
        told = changes()[0]
        Change.objects.filter(pk=told.pk).update(told_at=day(18))
        Record.objects.filter(at__gt=day(10)).delete()
        series.analyse(Group.objects.get(), day(19))
        assert list(Change.objects.all()) == [told]
