"""How long it will take: from finished experiments like it, or an honest no."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from tests.webapp.experiments import make
from tests.webapp.experiments.rows import MACHINE, done, ended, run
from webapp.experiments import machines, upkeep
from webapp.experiments.estimate import Estimate, estimate, likeness
from webapp.experiments.models import Experiment, State

pytestmark = pytest.mark.usefixtures("no_broker")

CORNER = [{"concurrency": 1, "prompt_tokens": 16}]


def base(**workload: Any) -> dict[str, Any]:
    return {"model": "olmoe-1b-7b", "workload": {"requests": 4, "output_tokens": 4} | workload}


def took(row: Experiment, seconds: float) -> Experiment:
    Experiment.objects.filter(pk=row.pk).update(started_at=F("finished_at") - timedelta(seconds=seconds))
    return row


# Which are alike


@pytest.mark.parametrize(
    "changes",
    [
        {"title": "Another name"}, {"base": base(seed=7)}, {"vary": {"field": "kernels.fusion", "values": ["none"]}},
        {"vary": None}, {"vary": {"field": "load.skew", "values": [0.5, 1.0]}},
    ],
)  # fmt: skip
def test_words_seed_and_light_variables_make_no_difference(changes: dict[str, Any]) -> None:
    assert likeness(make.experiment(**changes)) == likeness(make.experiment())


@pytest.mark.parametrize(
    "changes",
    [
        {"base": base() | {"model": "mixtral-8x7b"}}, {"base": base() | {"layers": 2}}, {"base": base(requests=8)},
        {"base": base() | {"kernels": {"dtype": "float32"}}}, {"conditions": CORNER}, {"measure": {"repeats": 2}},
        {"vary": {"field": "model", "values": ["olmoe-1b-7b"]}}, {"vary": {"field": "layers", "values": [1, 2]}},
    ],
)  # fmt: skip
def test_what_makes_a_run_longer_does(changes: dict[str, Any]) -> None:
    assert likeness(make.experiment(**changes)) != likeness(make.experiment())


# The estimate


@pytest.mark.django_db
def test_without_one_like_it_there_is_none(member: Any) -> None:
    ended(run(member))
    took(done(member, conditions=CORNER), 10)
    assert estimate(make.experiment(), "default") is None


@pytest.mark.django_db
def test_it_is_the_median_of_those_like_it_with_their_range(member: Any) -> None:
    for seconds in (100, 180, 130):
        took(done(member), seconds)
    assert estimate(make.experiment(), "default") == Estimate(130.0, 100.0, 180.0, 3, "AMD EPYC, 2 cores")


@pytest.mark.django_db
def test_more_runs_take_longer_in_proportion(member: Any) -> None:
    took(done(member), 100)  # 2 variants
    one = make.experiment(vary=None)
    found = estimate(one, "default")
    assert found is not None
    assert found.seconds == 50.0


@pytest.mark.django_db
def test_only_the_kind_of_machine_that_did_it_last_counts(member: Any) -> None:
    took(done(member), 1000)
    Experiment.objects.update(machine=machines.register_this(MACHINE | {"name": "slow", "fingerprint": "s"}, "default"))
    took(done(member), 100)
    assert estimate(make.experiment(), "default") == Estimate(100.0, 100.0, 100.0, 1, "AMD EPYC, 2 cores")


@pytest.mark.django_db
def test_another_pool_and_deleted_ones_do_not_count(member: Any) -> None:
    took(done(member), 100)
    upkeep.delete(took(done(member), 900).pk)
    assert estimate(make.experiment(), "gpu") is None
    found = estimate(make.experiment(), "default")
    assert found is not None
    assert (found.count, found.most) == (1, 100.0)


@pytest.mark.django_db
def test_it_is_one_query(member: Any, django_assert_num_queries: Any) -> None:
    for _ in range(25):
        took(done(member), 100)
    with django_assert_num_queries(1):
        found = estimate(make.experiment(), "default")
    assert found is not None
    assert found.count == 20  # the latest


# On the form


@pytest.mark.django_db
def test_the_form_says_how_long_and_from_what(signed_in: Any, member: Any) -> None:
    for seconds in (150, 180, 300):
        took(done(member), seconds)
    row = Experiment.objects.filter(state=State.DONE).latest("pk")
    page = signed_in.get(f"/experiments/new/?from={row.pk}").content.decode().replace("\N{NO-BREAK SPACE}", " ")
    assert "about 3 min" in page
    assert "on AMD EPYC, 2 cores, from 3 like it, 2 min to 5 min" in page


@pytest.mark.django_db
def test_the_form_admits_that_it_does_not_know(signed_in: Any) -> None:
    assert "no experiment like it has run yet" in signed_in.get("/experiments/new/").content.decode()
