"""The charts of a comparison, as data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.result import Limit
from tests.webapp.experiments import make
from tests.webapp.experiments.measured import USUAL, measured, of, summary
from webapp.experiments import compare_charts
from webapp.experiments.compare import Measured
from webapp.experiments.compare_table import table


def test_each_corner_shows_the_intervals_on_one_scale() -> None:
    contenders = of(measured("a", id=1), measured("b", 0.9, id=2), measured("c", 1.001, id=3),
                    measured("a", id=4, condition=1), measured("b", 1.3, id=5, condition=1))  # fmt: skip
    first, second = compare_charts.intervals(table(contenders, contenders[0]))
    assert (first.title, second.title) == ("1×16", "4×64")
    [bars] = first.config["data"]["datasets"]
    assert first.config["data"]["labels"] == ["b", "c"]
    assert bars["backgroundColor"] == ["var(--good)", "var(--muted)"]
    low, high = bars["data"][0]
    assert low < -0.1 < high < -0.09
    scales = [chart.config["options"]["scales"]["x"] for chart in (first, second)]
    assert scales[0] == scales[1]
    assert scales[0]["min"] <= -0.1
    assert scales[0]["max"] >= 0.3


def test_without_an_interval_there_is_no_chart() -> None:
    contenders = of(measured("a", id=1, steps=5), measured("b", id=2, steps=5))
    assert compare_charts.intervals(table(contenders, contenders[0])) == []


def test_steps_are_drawn_against_the_same_step_of_the_baseline() -> None:
    contenders = of(measured("a", id=1), measured("b", 0.9, id=2), measured("c", id=3, condition=1))
    chart = compare_charts.differences(contenders, contenders[0], "1×16")
    assert chart is not None
    [line] = chart.config["data"]["datasets"]
    assert line["label"] == "b"
    assert [point["x"] for point in line["data"]] == list(range(200))
    assert [point["y"] for point in line["data"]] == pytest.approx([-0.1] * 200, abs=0.01)
    assert chart.note == ""


def test_what_is_left_out_of_the_steps_is_said() -> None:
    many = of(*(measured(f"v{n}", id=n + 1) for n in range(8)))
    chart = compare_charts.differences(many, many[0], "1×16")
    assert chart is not None
    assert len(chart.config["data"]["datasets"]) == 5
    assert chart.note == "The first 5 of 7 are drawn."


def test_steps_of_other_batches_are_not_drawn() -> None:
    base, other = measured("a", id=1), measured("b", id=2, summary=summary(USUAL, rounds=1))
    found = of(base, other)
    assert compare_charts.differences(found, found[0], "1×16") is None
    assert compare_charts.differences(found, found[0], "4×64") is None


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=50), st.integers(1, 20))
def test_thinned_steps_are_few_and_in_order(values: list[float], most: int) -> None:
    kept = compare_charts.thinned(np.arange(len(values)), np.array(values), most)
    assert len(kept) == min(most, len(values))
    assert [x for x, _ in kept] == sorted({x for x, _ in kept})
    assert all(min(values) <= y <= max(values) for _, y in kept)


def limited(name: str, id: int, **changes: float | None) -> Measured:
    limit = {"floor_us": 1.0, "share": 0.5, "bound": "memory", "flops_per_s": 20e9, "intensity": 1.0} | changes
    limits = {"experts": Limit.model_validate(limit), "experts.routed": Limit.model_validate(limit)}
    return measured(name, id=id, summary=summary(USUAL, limits=limits), ceilings=make.ceilings())


def test_the_roofline_has_a_point_a_stage_below_the_roof() -> None:
    """40 GB/s and 900 GFLOP/s meet at 22.5 FLOPs a byte; at one FLOP a byte the roof is at 40 GFLOP/s."""
    found = compare_charts.roofline(of(limited("a", 1), limited("b", 2, flops_per_s=30e9)), "1×16")
    assert found is not None
    assert [(point.name, point.stage, point.gflops) for point in found.points] == [
        ("a", "experts", 20),
        ("b", "experts", 30),
    ]
    assert found.roofs == ["cpu, bfloat16: 40 GB/s and 900 GFLOP/s"]
    *points, roof = found.chart.config["data"]["datasets"]
    assert [point["pointStyle"] for point in points] == ["circle", "triangle"]
    assert [(point["x"], point["y"]) for point in roof["data"]] == [(0.5, 20.0), (22.5, 900.0), (45.0, 900.0)]
    assert found.chart.note == "Shapes: a circle, b triangle."


def test_experts_in_int8_have_a_roof_of_their_own_beside_that_of_the_rest() -> None:
    kept = make.ceilings()
    kept = kept.model_copy(update={"matrix": kept.matrix | {"int8": make.ceiling(1900.0, "GFLOP/s")}})
    limits = limited("a", 1).summary.limits
    both = [
        measured(name, id=id, summary=summary(USUAL, limits=limits), ceilings=kept, spec={"kernels.quantization": name})
        for id, name in enumerate(("none", "int8"), start=1)
    ]
    found = compare_charts.roofline(of(*both), "1×16")
    assert found is not None
    assert found.roofs == ["cpu, bfloat16: 40 GB/s and 900 GFLOP/s", "cpu, int8: 40 GB/s and 1,900 GFLOP/s"]


def test_without_ceilings_or_floors_there_is_no_roofline() -> None:
    assert compare_charts.roofline(of(measured("a", id=1), measured("b", id=2)), "1×16") is None
    assert compare_charts.roofline(of(limited("a", 1, intensity=None)), "1×16") is None
    assert compare_charts.roofline(of(limited("a", 1)), "4×64") is None
