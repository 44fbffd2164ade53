"""The pages of the history."""

from __future__ import annotations

from typing import Any

import pytest

from tests.webapp.experiments.rows import text_of, title_of
from tests.webapp.history.make_nights import day, nights, schedule
from tests.webapp.kept import OfKeptMember
from webapp.accounts.models import User
from webapp.experiments.models import Run
from webapp.history import series_chart
from webapp.history.models import Change, Point, Record, Series
from webapp.history.series_page import Night, in_words, interval

SLOWER = {"stage_experts": 1.12, "step_us": 1.1}

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]


@pytest.fixture(scope="class")
def since_the_tenth(kept_member: User) -> Series:
    """Nights 0 to 18, slower in the experts, and so in the step, from the 10th on."""
    nights(schedule(kept_member), 0, 18, from_night=10, **SLOWER)
    return Series.objects.get(metric="stage.experts")


def test_an_empty_history_says_what_will_be_here(signed_in: Any) -> None:
    text = text_of(signed_in.get("/history/"))
    assert "It takes two nights to begin." in text
    assert "Run an experiment every night" in text


def test_one_night_is_no_history_yet(signed_in: Any, member: Any) -> None:
    nights(schedule(member), 0, 0)
    assert "It takes two nights to begin." in text_of(signed_in.get("/history/"))


def test_where_nothing_changed_it_says_so_and_folds_the_series_away(signed_in: Any, member: Any) -> None:
    nights(schedule(member), 0, 1)
    response = signed_in.get("/history/")
    assert "Nothing changed. 9 steady" in text_of(response)
    assert "<table" not in response.text
    shown = text_of(signed_in.get("/history/?steady=1"))
    assert "step time base at 1×16 Fusion on AMD EPYC, 2 cores" in shown


class TestAChange(OfKeptMember):
    @pytest.fixture
    def slowed(self, since_the_tenth: Series) -> Series:
        return Series.objects.get(pk=since_the_tenth.pk)

    def test_what_changed_comes_first_with_direction_size_and_night(self, signed_in: Any, slowed: Series) -> None:
        response = signed_in.get("/history/")
        text = text_of(response)
        assert "2 series changed, 2 of them slower." in text
        assert "since Mar 12 confirmed" in text
        assert "7 steady" in text
        assert response.text.count('class="sparkline"') == 2
        assert response.text.count('<circle class="change"') == 2
        assert title_of(response) == "2 slower · History · Moescope"

    def test_lists_take_a_constant_number_of_queries(
        self, signed_in: Any, slowed: Series, django_assert_num_queries: Any
    ) -> None:
        with django_assert_num_queries(
            8
        ):  # session, user; changes, places, steady counted, alerts, steady counted again, page
            signed_in.get("/history/?steady=1")

    def test_a_series_page_has_the_chart_its_table_and_both_nights_side_by_side(
        self, signed_in: Any, slowed: Series
    ) -> None:
        response = signed_in.get(slowed.get_absolute_url())
        before, after = (Point.objects.get(series=slowed, record__at=at).run_id for at in (day(9), day(10)))
        assert f'href="/compare/?runs={before},{after}"' in response.text
        assert "2026-03-12 02:00 new level" in text_of(response)
        assert response.text.count("<tr>") == 1 + 19
        assert title_of(response) == "experts · Fusion · Moescope"

    def test_a_series_page_takes_a_constant_number_of_queries(
        self, signed_in: Any, slowed: Series, django_assert_num_queries: Any
    ) -> None:
        with django_assert_num_queries(5):  # session, user, series, points, changes
            signed_in.get(slowed.get_absolute_url())

    def test_new_versions_are_marked_on_their_night(self, signed_in: Any, slowed: Series) -> None:
        for point in Point.objects.filter(series=slowed).select_related("record"):
            version = "2" if point.record.at >= day(10) else "1"
            Record.objects.filter(pk=point.record_id).update(versions={"image": version})
        text = text_of(signed_in.get(slowed.get_absolute_url()))
        assert "new that night: image 2" in text
        assert text.count("image 2") == 2  # at the change and in the table

    def test_a_night_whose_run_was_not_steady_has_its_chip(self, signed_in: Any, slowed: Series) -> None:
        first, last = slowed.points.order_by("record__at").first(), slowed.points.order_by("record__at").last()
        Run.objects.update(noise=None)
        assert 'class="noise"' not in signed_in.get(slowed.get_absolute_url()).text
        for point, label in ((first, "contended"), (last, "unknown")):
            Run.objects.filter(pk=point.run_id).update(noise={"label": label, "samples": 7})
        page = signed_in.get(slowed.get_absolute_url()).text
        assert page.count('class="noise"') == page.count('data-noise="contended"') == 1
        assert f'href="/experiments/{first.record.experiment_id}/#steady"' in page

    def test_a_decision_is_kept_with_who_made_it_and_closes_the_change(self, signed_in: Any, slowed: Series) -> None:
        change = slowed.changes.get()
        posted = {"state": "expected", "note": "kernel for small batches"}
        response = signed_in.post(f"/history/changes/{change.pk}/triage/", posted, follow=True)
        text = text_of(response)
        assert "experts is expected, with 1 more of the same nights." in text
        assert slowed.changes.get().by == change.series.group.records.first().experiment.author
        assert ": kernel for small batches" in text
        assert "Nothing changed. 9 steady" in text_of(signed_in.get("/history/"))

    @pytest.mark.parametrize(
        ("posted", "sentence"),
        [
            ({"state": "gone"}, "gone is not one of new, acknowledged, fixed, expected, noise."),
            ({"state": "noise", "note": "x" * 2001}, "The note has 2001 characters; 2000 are allowed."),
        ],
    )
    def test_what_is_no_decision_is_refused_in_a_sentence(
        self, signed_in: Any, slowed: Series, posted: dict[str, str], sentence: str
    ) -> None:
        change = slowed.changes.get()
        response = signed_in.post(f"/history/changes/{change.pk}/triage/", posted)
        assert response.status_code == 422
        assert sentence in text_of(response)
        assert set(Change.objects.values_list("state", flat=True)) == {"new"}

    def test_a_viewer_reads_and_is_offered_no_decision(
        self, client: Any, slowed: Series, django_user_model: Any
    ) -> None:
        client.force_login(django_user_model.objects.create_user("vera", role="viewer"))
        assert "Say so" not in text_of(client.get(slowed.get_absolute_url()))
        assert client.post(f"/history/changes/{slowed.changes.get().pk}/triage/", {"state": "noise"}).status_code == 403


def test_a_week_in_words() -> None:
    assert (in_words([1.081, 1.07, 1.09]), in_words([1.02, 0.99, 1.05]), in_words([])) == ("▲\xa08.1%", "~", "–")
    assert interval([1.02, 0.99, 1.05]) == "+2.0% against the week before, 95% interval −1.0% to +5.0%"
    assert interval([]) == "two weeks of nights are needed"


def test_the_chart_marks_levels_and_versions() -> None:
    at = [
        Night(day(number), value, run=number, experiment=number, versions={}, new={"image": "2"} if number else {})
        for number, value in enumerate([10.0, 11.0])
    ]
    values, low, high, versions = series_chart.trend(at, [9.0, 10.0], [11.0, 12.0], [1], "tpot_ms")["data"]["datasets"]
    assert values["data"] == [10_000.0, 11_000.0]
    assert values["pointRadius"] == [1.5, 6]
    assert (low["data"], high["data"]) == ([9000.0, 10_000.0], [11_000.0, 12_000.0])
    assert versions["data"] == [None, 9000.0]
