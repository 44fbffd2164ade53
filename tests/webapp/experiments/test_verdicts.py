"""Where the time goes and what to try next, on an experiment's page."""

from __future__ import annotations

from typing import Any

import pytest

from bench_worker import verdict
from tests.webapp.experiments import make
from tests.webapp.experiments.rows import done, text_of
from webapp.experiments import verdicts
from webapp.experiments.models import Experiment
from webapp.ui.formatting import size

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]


def judged(author: Any, **changes: Any) -> Experiment:
    """A finished experiment whose result has a verdict."""
    row = done(author, **changes)
    found = verdict.overall(make.result(make.experiment(**changes)).runs)
    assert found is not None
    assert row.result is not None
    row.result["verdict"] = found.model_dump(mode="json")
    row.save()
    return row


def test_the_page_says_where_the_time_goes_and_whether_it_fits(signed_in: Any, member: Any) -> None:
    row = judged(member)
    assert row.result is not None
    text = text_of(signed_in.get(row.get_absolute_url()))
    memory = f"{size(row.result['verdict']['memory_bytes'])} of {size(16e9)}.".replace("\N{NO-BREAK SPACE}", " ")
    assert f"Memory of the deployment: {memory}" in text
    assert "Share of the mean step, of gate_up Corner Weight streaming Expert compute Communication" in text
    assert (
        text.index("Step time") < text.index("Where it goes") < text.index("Try next") < text.index("What users feel")
    )


def test_without_a_verdict_there_is_no_section(signed_in: Any, member: Any) -> None:
    assert "Where it goes" not in text_of(signed_in.get(done(member).get_absolute_url()))


def test_rows_are_the_first_variants_and_then_the_others() -> None:
    runs = make.result(make.experiment()).runs
    found = verdict.overall(runs)
    assert found is not None
    section = verdicts.section(
        {"verdict": found.model_dump(mode="json")}, [(run.variant, run.condition) for run in runs]
    )
    assert section is not None
    assert (section.first, [row.name for row in section.rows]) == ("gate_up", ["1×16", "4×64"])
    assert [(row.name, row.corner) for row in section.others] == [("none", "1×16"), ("none", "4×64")]
    assert all(sum(row.shares) == pytest.approx(1) for row in section.rows)
    assert verdicts.section({"verdict": None}, []) is None


def test_one_click_queues_the_advice(signed_in: Any, member: Any) -> None:
    row = judged(member)
    assert row.result is not None
    [advice, *_] = row.result["verdict"]["advice"]
    response = signed_in.post(f"{row.get_absolute_url()}next/0/")
    queued = Experiment.objects.get(state="queued")
    assert response.url == queued.get_absolute_url()
    assert queued.title == advice["experiment"]["title"]
    assert queued.document["vary"] == advice["experiment"].get("vary")


def test_advice_that_can_not_run_any_more_is_refused_with_its_reason(signed_in: Any, member: Any) -> None:
    row = judged(member)
    assert row.result is not None
    row.result["verdict"]["advice"][0]["experiment"]["base"]["workload"] = {"trace": "gone"}
    row.save()
    text = text_of(signed_in.post(f"{row.get_absolute_url()}next/0/", follow=True))
    assert "Not queued: base.workload.trace: 'gone'" in text
    assert not Experiment.objects.filter(state="queued").exists()


def test_advice_that_was_never_given_is_not_found(signed_in: Any, member: Any) -> None:
    assert signed_in.post(f"{judged(member).get_absolute_url()}next/9/").status_code == 404
    assert signed_in.post(f"{done(member).get_absolute_url()}next/0/").status_code == 404
    assert signed_in.get(f"{judged(member).get_absolute_url()}next/0/").status_code == 405


def test_a_comparison_shows_where_the_time_of_each_goes(signed_in: Any, member: Any) -> None:
    row = judged(member)
    first, last = (run.pk for run in (row.runs.order_by("position")[0], row.runs.order_by("position")[1]))
    assert "Where it goes share of the mean step at 1×16" in text_of(signed_in.get(f"/compare/?runs={first},{last}"))


def test_a_viewer_reads_the_advice_and_is_offered_no_button(client: Any, member: Any, django_user_model: Any) -> None:
    row = judged(member)
    client.force_login(django_user_model.objects.create_user("vera", role="viewer"))
    response = client.get(row.get_absolute_url())
    assert "Try next" in text_of(response)
    assert "next/0/" not in response.content.decode()
    assert client.post(f"{row.get_absolute_url()}next/0/").status_code == 403
