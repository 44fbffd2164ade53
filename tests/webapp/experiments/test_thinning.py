"""What is thinned loses its steps and nothing else, and everything that needs them says so in a sentence."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.webapp.experiments.rows import done, text_of
from webapp.experiments import export, thinning
from webapp.experiments.models import Experiment, Run, StageSeries
from webapp.experiments.thinning import Size, Thinned

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]

WHEN = datetime(2026, 5, 1, 3, tzinfo=UTC)
SENTENCE = (
    "Step samples were thinned on 2026-05-01: medians, percentiles, stages, requests and routing remain, single steps "
    "don't."
)


@pytest.fixture
def thinned(member: Any) -> Experiment:
    row = done(member)
    thinning.thin(Experiment.objects.filter(pk=row.pk), 10, WHEN)
    row.refresh_from_db()
    return row


def test_steps_go_and_runs_stay_as_they_were(member: Any) -> None:
    row, other = done(member), done(member)
    before, of_other = list(Run.objects.values()), StageSeries.objects.filter(run__experiment=other).count()
    rows = Experiment.objects.filter(pk=row.pk)
    size = thinning.size_of(rows)
    assert (size.experiments, size.runs) == (1, row.runs.count())
    assert size.num_bytes > 0
    assert thinning.thin(rows, 10, WHEN) == size
    assert list(Run.objects.values()) == before
    assert StageSeries.objects.count() == of_other > 0
    assert thinning.thin(rows, 10, WHEN) == Size()


def test_the_oldest_come_first(member: Any) -> None:
    old, new = done(member), done(member)
    Experiment.objects.filter(pk=old.pk).update(finished_at=WHEN)
    assert thinning.thin(Experiment.objects.all(), 1, WHEN).experiments == 1
    assert list(Experiment.objects.filter(thinned_at=None)) == [new]


def test_nothing_is_said_of_what_has_its_steps(member: Any, signed_in: Any) -> None:
    row = done(member)
    assert thinning.in_words(row) == ""
    assert "thinned" not in text_of(signed_in.get(row.get_absolute_url()))


def test_its_page_says_since_when_and_shows_the_medians(signed_in: Any, thinned: Experiment) -> None:
    response = signed_in.get(thinned.get_absolute_url())
    text = text_of(response)
    assert SENTENCE in text
    assert "Step time median of the whole-model step" in text
    assert thinned.answer in text
    assert "One layer, stage by stage: medians over 5 steps" in text
    assert "Steps for Perfetto" not in text
    assert "/result/" not in response.text


def test_the_page_of_a_run_says_so_and_keeps_its_requests(signed_in: Any, thinned: Experiment) -> None:
    response = signed_in.get(f"{thinned.get_absolute_url()}runs/0/")
    text = text_of(response)
    assert SENTENCE in text
    assert "The requests that are drawn" in text
    assert "Prefill and decode in tokens" not in text


@pytest.mark.parametrize("address", ["result/", "trace/"])
def test_what_holds_steps_is_refused(signed_in: Any, thinned: Experiment, address: str) -> None:
    response = signed_in.get(f"{thinned.get_absolute_url()}{address}")
    assert (response.status_code, response.text) == (410, f"{SENTENCE}\n")


def test_its_tables_are_those_of_before(signed_in: Any, member: Any) -> None:
    row = done(member)
    before = signed_in.get(f"{row.get_absolute_url()}tables/").content
    thinning.thin(Experiment.objects.all(), 10, WHEN)
    assert signed_in.get(f"{row.get_absolute_url()}tables/").content == before


def test_a_comparison_is_refused(signed_in: Any, member: Any, thinned: Experiment) -> None:
    gone, there = thinned.runs.all()[0], done(member).runs.all()[0]
    for address, runs, sentence in (
        (
            "/compare/", f"{gone.pk},{there.pk}",
            f"Runs: {gone.pk} is without step samples, which a comparison takes: they were thinned on 2026-05-01, and "
            "medians and percentiles remain on the page of the run.",
        ),
        ("/compare/table/", f"{gone.pk}-{gone.pk + 1}", f"runs: {gone.pk} and {gone.pk + 1} are without step samples"),
    ):  # fmt: skip
        response = signed_in.get(address, {"runs": runs})
        assert response.status_code == 422
        assert sentence in text_of(response)


def test_programs_are_told_the_same(thinned: Experiment) -> None:
    with pytest.raises(Thinned, match="Step samples were thinned on 2026-05-01"):
        export.result_of(thinned)
    with pytest.raises(Thinned):
        export.run_of(thinned.runs.all()[0])
