"""Contenders at corners."""

from __future__ import annotations

import pytest

from tests.webapp.experiments.measured import measured, of
from webapp.experiments.compare import STEP
from webapp.experiments.compare_table import corner_names, parts, table


def names(found: object) -> list[str]:
    return [contender.name for contender in found]  # type: ignore[attr-defined]


def test_every_contender_stands_against_the_baseline_at_every_corner() -> None:
    runs = [measured("a", id=1), measured("b", 0.9, id=2), measured("a", id=3, condition=1),
            measured("b", 1.2, id=4, condition=1)]  # fmt: skip
    a, b = of(*runs)
    found = table([a, b], a)
    assert found.corners == ["1×16", "4×64"]
    assert [row.is_base for row in found.rows] == [True, False]
    assert [cell.step for cell in found.base.cells] == [None, None]
    [row] = found.others
    assert [cell.step.verdict for cell in row.cells if cell.step] == ["faster", "slower"]
    assert row.mean is not None
    assert row.mean.found is not None
    assert row.mean.found.ratio == pytest.approx((0.9 * 1.2) ** 0.5, abs=0.001)
    assert found.has_means
    assert found.marks == ["×16"]


def test_the_fastest_leads_and_so_does_who_can_not_be_told_from_it() -> None:
    contenders = of(
        measured("a", id=1), measured("b", 0.9, id=2), measured("c", 0.9005, id=3), measured("d", 0.95, id=4)
    )
    found = table(contenders, contenders[0])
    assert names(found.leaders("1×16")) == ["b", "c"]
    assert [row.cells[0].leads for row in found.rows] == [False, True, True, False]


def test_a_baseline_that_nobody_beats_leads_alone() -> None:
    contenders = of(measured("a", id=1), measured("b", 1.1, id=2))
    assert names(table(contenders, contenders[0]).leaders("1×16")) == ["a"]


def test_nobody_leads_where_nothing_is_certain() -> None:
    contenders = of(measured("a", id=1, steps=5), measured("b", 0.5, id=2, steps=5))
    assert table(contenders, contenders[0]).leaders("1×16") == []


def test_a_corner_without_the_baseline_has_times_and_no_ratio() -> None:
    contenders = of(measured("a", id=1), measured("b", id=2, condition=1))
    found = table(contenders, contenders[0])
    here, there = found.others[0].cells
    assert (here.run, here.step) == (None, None)
    assert there.run is not None
    assert there.step is not None
    assert there.step.words == "the baseline has no run here"
    assert not found.has_means


def test_p_values_are_corrected_for_the_number_of_contenders() -> None:
    contenders = of(*(measured(f"v{n}", 1 + n / 50, id=n + 1) for n in range(5)))
    cells = [row.cells[0].step for row in table(contenders, contenders[0]).others]
    assert [cell.found.family for cell in cells if cell and cell.found] == [4] * 4


def test_traits_stand_there_where_they_differ() -> None:
    contenders = of(measured("a", id=1, overlap=1.0), measured("b", id=2, overlap=0.25))
    found = table(contenders, contenders[0])
    assert found.traits == ["Same experts"]
    assert [row.traits for row in found.rows] == [["100%"], ["25%"]]
    alike = of(measured("a", id=1), measured("b", id=2))
    assert table(alike, alike[0]).traits == []


def test_corners_of_the_same_name_are_told_apart_by_what_differs() -> None:
    first, second = measured(id=1), measured("other", id=2, spec={"workload.seed": 7, "workload.requests": 9})
    assert set(corner_names([first, second]).values()) == {"1×16, requests 4, seed 0", "1×16, requests 9, seed 7"}


def test_one_variant_of_two_experiments_is_two_contenders() -> None:
    found = of(measured(id=1), measured(id=2, experiment=2), measured(id=3, condition=1))
    assert [(contender.key, list(contender.runs)) for contender in found] == [("1", ["1×16", "4×64"]), ("2", ["1×16"])]


def test_a_corner_is_compared_part_by_part() -> None:
    latencies = {"ttft_ms": [1.0] * 30, "tpot_ms": []}
    contenders = of(measured("a", id=1, requests=latencies), measured("b", 0.9, id=2, requests=latencies))
    found = parts(contenders, contenders[0], "1×16")
    assert found is not None
    assert found.names == [STEP, "route", "experts", "ttft_ms"]
    base, other = found.rows
    assert base.parts == [None] * 4
    assert [part.css for part in other.parts if part] == ["faster"] * 3 + ["same"]


def test_without_a_common_stage_there_are_no_parts() -> None:
    alone = measured("b", id=2, parts={STEP: measured().parts[STEP], "attention": measured().parts[STEP]})
    contenders = of(measured("a", id=1), alone)
    assert parts(contenders, contenders[0], "1×16") is None
    assert parts(contenders, contenders[0], "4×64") is None
