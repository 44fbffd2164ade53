"""Which runs an address names, and what is said of those that can't be compared."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.webapp.experiments.rows import done, run
from webapp.experiments import compare_read, upkeep
from webapp.experiments.compare_read import MOST, Refused, measured, parse, written

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]


def test_numbers_stand_one_by_one_or_as_stretches() -> None:
    assert parse(["3,5"]) == parse(["3", "5"]) == [3, 5]
    assert parse(["7-9, 2,8"]) == [7, 8, 9, 2]
    assert parse(["", ","]) == []


@given(st.lists(st.integers(1, 500), unique=True, max_size=MOST))
def test_what_is_written_is_read_again(numbers: list[int]) -> None:
    assert parse([written(numbers)]) == numbers


def test_stretches_are_written_short() -> None:
    assert written([3, 4, 5, 9, 8, 1, 2]) == "3-5,9,8,1,2"


@pytest.mark.parametrize("text", ["a", "1,b", "1-x", "-3", "1.5", "9" * 30])
def test_what_is_no_number_is_named(text: str) -> None:
    with pytest.raises(Refused, match=r"^runs: '.+' is not the number of a run; give numbers as in 3,5 or 3-9\.$"):
        parse([text])


@pytest.mark.parametrize("text", ["1-500", "1-999999999999", ",".join(map(str, range(500)))])
def test_too_many_name_the_limit(text: str) -> None:
    with pytest.raises(Refused, match=rf"runs are too many; at most {MOST} can be compared at once\."):
        parse([text])


def test_runs_that_can_not_be_compared_are_named(member: Any) -> None:
    row = done(member, wrong=frozenset(["none"]))
    first, wrong, *_ = row.runs.order_by("position").values_list("pk", flat=True)
    gone = done(member)
    hidden = gone.runs.values_list("pk", flat=True)[0]
    upkeep.delete(gone.pk)
    run(member)  # one that is not done has no runs yet
    for numbers, sentence in {
        (): "runs: none is chosen; a comparison takes two or more.",
        (first,): f"runs: run {first} is only one; a comparison takes two or more.",
        (first, 9991): "runs: 9991 is no finished run.",
        (first, 9991, 9992): "runs: 9991 and 9992 are no finished runs.",
        (first, *range(9991, 9999)): "runs: 9991, 9992, 9993, 9994, 9995 and 3 more are no finished runs.",
        (first, hidden): f"runs: {hidden} is no finished run.",
        (first, wrong): f"runs: {wrong} is without times: the output was wrong, or no step was measured.",
    }.items():
        with pytest.raises(Refused) as refused:
            measured(numbers)
        assert str(refused.value) == sentence


def test_runs_come_in_the_order_asked_for_with_what_each_step_took(member: Any) -> None:
    """gate_up and none at 1×16: 36.6 · (1 and 2) ms and more, in five steps; of olmoe's 16 layers, one was executed."""
    row = done(member)
    first, second = row.runs.order_by("position").values_list("pk", flat=True)[:2]
    one, other = measured([second, first])
    assert (one.id, one.variant, other.id, other.variant) == (second, "none", first, "gate_up")
    assert (other.layer_scale, other.interleaved) == (16, 2)
    assert other.stages == ["route", "permute", "experts", "combine", "attention", "other"]
    assert other.parts["route"].tolist() == pytest.approx([16 * 30 * (1 + step / 10) for step in range(5)])
    assert sum(other.parts[stage] for stage in other.stages).tolist() == pytest.approx(other.parts["step"].tolist())
    assert other.requests["tpot_ms"] == [1.0, None]
    assert row.machine is not None
    assert (other.host, other.environment["name"], other.overlap) == (row.machine.host, "test bench", 0.25)


def test_an_experiments_own_runs_are_read_by_whole_steps(member: Any) -> None:
    row = done(member, wrong=frozenset(["none"]))
    found = compare_read.of_experiment(row.pk)
    assert [(one.variant, one.condition, list(one.parts)) for one in found] == [
        ("gate_up", "1×16", ["step"]), ("gate_up", "4×64", ["step"])
    ]  # fmt: skip
