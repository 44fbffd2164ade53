"""Ceilings over time: one line a rate, in order, tables of kernels marked."""

from __future__ import annotations

from bench_worker.ceilings import Ceilings
from tests.webapp.experiments import make
from webapp.experiments import kernel_tables
from webapp.experiments.ceilings_chart import Chart, charts


def drawn(*ceilings: Ceilings, tables: tuple[Ceilings, ...] = ()) -> list[Chart]:
    documents = [{str(one.threads): one.model_dump(mode="json")} for one in ceilings]
    return charts(kernel_tables.over_time(documents)[1], {one.measured_at for one in tables})


def lines(chart: Chart) -> dict[str, list[float | None]]:
    return {line["label"]: line["data"] for line in chart.config["data"]["datasets"]}


def test_one_calibration_makes_no_line() -> None:
    assert drawn() == drawn(make.ceilings()) == []


def test_the_memory_has_one_scale_and_every_number_format_its_own() -> None:
    memory, single, half = drawn(make.ceilings(50.0, day=2), make.ceilings(40.0))
    assert lines(memory) == {"Read": [40, 50], "Copy": [36, 45]}
    assert memory.config["data"]["labels"] == ["2026-03-01 02:00", "2026-03-02 02:00"]
    assert (lines(single), lines(half)) == ({"float32": [120, 120]}, {"bfloat16": [900, 900]})
    assert [chart.config["options"]["scales"]["y"]["title"]["text"] for chart in (memory, half)] == ["GB/s", "GFLOP/s"]
    assert [chart.config["options"]["plugins"]["legend"]["display"] for chart in (memory, half)] == [True, False]
    assert len({chart.id for chart in (memory, single, half)}) == 3


def test_calibrations_with_a_table_of_kernels_are_marked() -> None:
    first, second = make.ceilings(), make.ceilings(day=2)
    line = drawn(first, second, tables=(second,))[0].config["data"]["datasets"][0]
    assert (line["pointStyle"], line["pointRadius"]) == (["circle", "triangle"], [3, 6])


def test_every_number_of_threads_has_a_line_of_its_own() -> None:
    one = make.ceilings(20.0, day=2).model_copy(update={"threads": 1})
    half = drawn(make.ceilings(40.0), one, make.ceilings(44.0, day=3))[2]
    assert lines(half) == {"bfloat16, 1 thread": [None, 900, None], "bfloat16, 2 threads": [900, None, 900]}
    assert all(line["spanGaps"] for line in half.config["data"]["datasets"])


def test_a_format_that_some_calibrations_lack_is_left_out_of_them() -> None:
    less = make.ceilings().model_copy(update={"matrix": {"float32": make.ceiling(120.0, "GFLOP/s")}})
    assert lines(drawn(less, make.ceilings(day=2))[2]) == {"bfloat16": [None, 900]}
