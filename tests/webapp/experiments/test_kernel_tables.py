"""Tables of expert backends and ceilings, as pages show them."""

from __future__ import annotations

import pytest

from bench_worker.kernel_report import Table
from tests.webapp.experiments import make
from webapp.experiments import kernel_tables
from webapp.experiments.fingerprints import Change


def with_shares(*shares: float) -> Table:
    table = make.table(tokens=list(range(1, len(shares) + 1)))
    rows = {row.tokens: row for row in table.rows if row.backend == "loop"}
    return table.model_copy(
        update={
            "rows": [row.model_copy(update={"share": share}) for row, share in zip(rows.values(), shares, strict=True)]
        }
    )


def test_a_grid_has_a_line_for_each_backend_and_a_cell_for_each_size() -> None:
    grid = kernel_tables.grid(make.table(tokens=[64, 1]))
    assert grid.sizes == [64, 1]
    assert [name for name, _ in grid.lines] == ["auto", "deepspeed", "zentorch", "padded", "loop"]
    assert [cell and cell.row.experts_us for cell in grid.lines[1][1]] == [960.0, 120.0]
    assert [name for name, cells in grid.lines if cells[0] and cells[0].is_best] == ["auto", "zentorch"]
    assert len(grid.rows) == 10


def test_a_backend_that_is_not_there_says_why() -> None:
    assert kernel_tables.grid(make.table()).away == {"deepspeed_layer": "olmoe-1b-7b is not for it"}


def test_a_backend_that_is_there_at_one_size_has_an_empty_cell_at_the_others() -> None:
    table = make.table()
    rows = [row for row in table.rows if (row.backend, row.tokens) != ("loop", 64)]
    grid = kernel_tables.grid(table.model_copy(update={"rows": rows}))
    cells = dict(grid.lines)["loop"]
    assert cells[0] is not None
    assert cells[1] is None


def test_the_darker_the_nearer_to_the_limit() -> None:
    grid = kernel_tables.grid(with_shares(0.1, 0.25, 0.5, 0.74, 0.75, 0.9, 1.04))
    assert [cell and cell.level for cell in grid.lines[0][1]] == [0, 1, 2, 2, 3, 4, 4]


def test_what_changed_between_two_tables_is_told_in_times_ceilings_and_facts() -> None:
    changes = kernel_tables.changes(make.table(), make.table(slower=1.25, cores=4))
    assert changes.facts == [Change("Cores", "2", "4")]
    assert changes.ceilings[0] == (Change("Read", "40.0 GB/s", "32.0 GB/s"), pytest.approx(-0.2))
    assert [moved.backend for moved in changes.moved] == ["auto", "deepspeed", "zentorch", "padded", "loop"]
    assert changes.moved[1].cells == [(1.25, False), (1.25, False)]
    assert changes.sentence == "Of 10 times, 10 slower by more than 5%."


def test_what_makes_one_of_the_two_doubtful_comes_first() -> None:
    busy = "Other processes took 40% of the processors meanwhile."
    changes = kernel_tables.changes(make.table(), make.table(flags=[busy], cores=4))
    assert changes.facts == [Change("Meanwhile", "–", busy), Change("Cores", "2", "4")]


def test_faster_and_slower_are_counted_apart() -> None:
    before, after = make.table(tokens=[1]), make.table(tokens=[1])
    by = {"loop": 0.5, "padded": 2.0, "deepspeed": 1.04}
    rows = [
        row.model_copy(update={"experts_us": row.experts_us and row.experts_us * by.get(row.backend, 1.0)})
        for row in after.rows
    ]
    found = kernel_tables.changes(before, after.model_copy(update={"rows": rows}))
    assert found.sentence == "Of 5 times, 1 slower and 1 faster by more than 5%."


def test_a_small_difference_counts_as_none() -> None:
    changes = kernel_tables.changes(make.table(), make.table(slower=1.04))
    assert changes.sentence == "No time differs by more than 5%."
    assert all(is_alike for moved in changes.moved for _, is_alike in moved.cells)


def test_only_sizes_of_both_are_compared() -> None:
    changes = kernel_tables.changes(make.table(tokens=[1, 8]), make.table(tokens=[8, 64]))
    assert changes.sizes == [8]
    nothing = kernel_tables.changes(make.table(tokens=[1]), make.table(tokens=[64]))
    assert (nothing.moved, nothing.sentence) == ([], "The two have no backend and size in common.")


def test_each_calibration_is_a_line_with_its_change_against_the_one_before() -> None:
    older, newer = (make.ceilings(read, day=day) for read, day in ((40.0, 1), (30.0, 2)))
    documents = [{"2": one.model_dump(mode="json")} for one in (newer, older, older)]
    names, lines = kernel_tables.over_time([*documents, None])
    assert names == ["Read", "Copy", "float32", "bfloat16"]
    assert [line.ceilings.measured_at.day for line in lines] == [2, 1]
    assert lines[0].cells[0] == (newer.read, pytest.approx(-0.25), pytest.approx(-0.05))
    assert [cell.change for cell in lines[1].cells] == [None] * 4


def test_other_thread_counts_are_no_calibration_before() -> None:
    one = make.ceilings(20.0, day=2).model_copy(update={"threads": 1})
    documents = [{"2": make.ceilings(40.0).model_dump(mode="json"), "1": one.model_dump(mode="json")}]
    _, lines = kernel_tables.over_time(documents)
    assert [(line.ceilings.threads, line.cells[0].change) for line in lines] == [(1, None), (2, None)]


def test_only_the_latest_are_shown_and_still_know_what_was_before() -> None:
    documents = [{"2": make.ceilings(10.0 * day, day=day).model_dump(mode="json")} for day in range(1, 5)]
    names, lines = kernel_tables.over_time(documents, 1)
    assert len(lines) == 1
    assert lines[0].cells[0].change == pytest.approx(1 / 3)
    assert kernel_tables.over_time([]) == ([], [])
    assert names[0] == "Read"
