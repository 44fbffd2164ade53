"""The answer of a comparison, in one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.webapp.experiments.measured import STEPS, USUAL, measured, of
from webapp.experiments.compare import STEP, Measured
from webapp.experiments.compare_headline import headline
from webapp.experiments.compare_table import table


def words(*runs: Measured) -> str | None:
    found = of(*runs)
    said = headline(table(found, found[0]))
    return said and said.replace("\N{NO-BREAK SPACE}", " ")


def at_both(variant: str, id: int, factor: float, there: float) -> list[Measured]:
    return [measured(variant, factor, id=id), measured(variant, there, id=id + 10, condition=1)]


def test_the_fastest_is_named_with_how_much_and_how_sure() -> None:
    assert words(measured("a", id=1), measured("b", 0.82, id=2), measured("c", 0.9, id=3)) == (
        "b is fastest at the one corner measured: ▼ 18% (17.4–18.6) against a."
    )


def test_over_several_corners_it_is_the_geometric_mean() -> None:
    assert words(*at_both("a", 1, 1, 1), *at_both("b", 2, 0.8, 0.9)) == (
        "b is fastest at every corner: ▼ 15% (14.7–15.6) against a (geometric mean)."
    )
    assert words(*at_both("a", 1, 1, 1), *at_both("b", 2, 0.8, 0.8), *at_both("c", 3, 0.7, 1.5)) == (
        "b is fastest at 1 of 2 corners: ▼ 20% (19.6–20.4) against a (geometric mean). c is fastest at 1×16."
    )
    assert words(*at_both("a", 1, 1, 1), *at_both("b", 2, 0.8, 1.5), *at_both("c", 3, 2, 0.999)) == (
        "b is fastest at 1 of 2 corners; over all corners it is ▲ 9.5% (8.9–10.2) against a (geometric mean)."
    )


def test_corners_with_too_few_steps_are_named_and_not_counted_as_won() -> None:
    """Six steps at the second corner: the medians are there, no interval."""
    assert words(
        measured("a", id=1), measured("b", 0.8, id=2),
        measured("a", 1, id=11, condition=1, steps=6), measured("b", 0.5, id=12, condition=1, steps=6),
    ) == "b is fastest at 1 of 2 corners: ▼ 20% (19.4–20.6) against a. Too few samples to tell at 4×64."  # fmt: skip


def test_over_some_of_the_corners_it_is_the_range() -> None:
    few = [measured(name, factor, id=id, spec={"workload.concurrency": 9}, steps=6)
           for name, factor, id in (("a", 1, 21), ("b", 1, 22))]  # fmt: skip
    assert words(*at_both("a", 1, 1, 1), *at_both("b", 2, 0.8, 0.9), *few) == (
        "b is fastest at 2 of 3 corners: ▼ 10% to ▼ 20% against a. Too few samples to tell at 1×16, concurrency 9."
    )


def test_a_baseline_that_nobody_beats_is_the_answer() -> None:
    assert words(measured("a", id=1), measured("b", 1.2, id=2)) == (
        "a is fastest at the one corner measured: b is ▲ 20% (19.1–20.9) against a."
    )
    assert words(measured("a", id=1), measured("b", 1.2, id=2), measured("c", 1.3, id=3)) == (
        "a is fastest at the one corner measured: b is next, ▲ 20% (19.1–20.9) against a."
    )
    assert words(*at_both("a", 1, 1, 1), *at_both("b", 2, 1.2, 0.9), *at_both("c", 3, 1.3, 1.3)) == (
        "a is fastest at 1 of 2 corners. b is fastest at 4×64."
    )


def test_a_baseline_that_leads_at_some_corners_alone_has_no_next() -> None:
    """b and c are level at the second corner, where a is slower."""
    assert words(*at_both("a", 1, 1, 1), *at_both("b", 2, 1.2, 0.9), *at_both("c", 3, 1.3, 0.9)) == (
        "a is fastest at 1 of 2 corners."
    )  # nobody is fastest alone at the other


def test_a_corner_that_the_baseline_never_ran_at_has_nothing_to_compare() -> None:
    elsewhere = [measured(name, id=id, condition=1) for name, id in (("b", 12), ("c", 13))]
    assert words(measured("a", id=1), measured("b", 0.8, id=2), measured("c", 0.9, id=3), *elsewhere) == (
        "b is fastest at 1 of 2 corners: ▼ 20% (19.4–20.6) against a. Nothing to compare at 4×64."
    )


def test_no_change_is_an_answer() -> None:
    assert words(measured("a", id=1), measured("b", 1.001, id=2)) == (
        "No significant change at the one corner measured: b takes as long as a."
    )
    assert words(*at_both("a", 1, 1, 1), *at_both("b", 2, 1.001, 1), *at_both("c", 3, 0.999, 1)) == (
        "No significant change at every corner: all others take as long as a."
    )


def test_a_tie_is_called_one() -> None:
    assert words(measured("a", id=1), measured("b", 0.9, id=2), measured("c", 0.9004, id=3)) == (
        "No one is fastest alone: b and c are level at 1×16."
    )


def test_experts_that_are_not_the_models_own_are_said() -> None:
    said = words(measured("a", id=1), measured("b", 0.5, id=2, overlap=0.25, spec={"routing.strategy": "soft"}))
    assert said is not None
    assert said.startswith("b (non-causal) is fastest")
    assert said.endswith("Its experts differ from the model's own.")


def test_too_few_steps_make_no_sentence() -> None:
    assert words(measured("a", id=1, steps=5), measured("b", 0.5, id=2, steps=5)) is None


def with_long_steps(count: int, times: float, id: int = 2, **changes: Any) -> Measured:
    """A variant "b" that takes 0.8 of the usual times, but in ``count`` steps so many ``times`` of them."""
    factors = np.full(STEPS, 0.8)
    factors[:: STEPS // count] = times
    return measured("b", id=id, parts={STEP: USUAL * factors}, **changes)


def test_a_contender_whose_few_long_steps_outweigh_its_median_is_said_to() -> None:
    """(180 · 0.8 + 20 · 5) / 200 = 1.22 of the time of all steps."""
    a = measured("a", id=1)
    said = words(a, with_long_steps(20, 5))
    assert said is not None
    assert said.startswith("b is fastest at the one corner measured: ▼ 20% ")
    assert said.endswith(" against a. But all steps together, b takes longer: ▲ 22% at 1×16.")


def test_a_contender_that_is_slower_by_its_median_alone_is_said_to_take_less() -> None:
    """The other way round: 200 / (180 · 0.8 + 20 · 5) = 0.82."""
    base, other = with_long_steps(20, 5, id=1), measured("c", id=2)
    said = words(base, other)
    assert said is not None
    assert said.startswith("b is fastest at the one corner measured: c is ▲ 25% ")
    assert said.endswith(" against b. But all steps together, c takes less: ▼ 18% at 1×16.")


@pytest.mark.parametrize(
    ("count", "times"),
    [
        (20, 3.7),  # 1.09 of the time: not worth a word
        (1, 100.0),  # something else happened in one step
    ],
)
def test_what_is_no_contradiction_or_one_step_alone_is_not_told(count: int, times: float) -> None:
    said = words(measured("a", id=1), with_long_steps(count, times))
    assert said is not None
    assert "together" not in said


def test_runs_that_did_not_take_turns_have_no_steps_together() -> None:
    said = words(measured("a", id=1), with_long_steps(20, 5, experiment=2))
    assert said is not None
    assert "together" not in said
