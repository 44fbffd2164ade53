"""Sweeps: throughput against latency, and the heat map of load and prompt length."""

from __future__ import annotations

from typing import Any

import pytest

from bench_worker.result import Run
from bench_worker.spec import Experiment
from tests.webapp.experiments import make, rows
from webapp.experiments import present, sweep
from webapp.experiments.sweep import Heat, Sweep

GRID = [{"concurrency": users, "prompt_tokens": tokens} for tokens in (16, 64) for users in (1, 4, 8)]
ONE = {"field": "kernels.fusion", "values": ["gate_up"]}


def plan(asked: Experiment) -> list[dict[str, Any]]:
    return [{"variant": run.variant, "condition": run.condition, "layer_scale": 1} for run in asked.runs()]


def found(against: str = "", metric: str = "", runs: list[Run] | None = None, **changes: Any) -> Sweep | None:
    asked = make.experiment(**{"conditions": GRID} | changes)
    measured = make.result(asked).runs if runs is None else runs
    seen = present.seen(plan(asked), [run.model_dump(mode="json") for run in measured])
    return sweep.section(asked.document(), plan(asked), seen, against, metric)


def section(against: str = "", metric: str = "", **changes: Any) -> Sweep:
    given = found(against, metric, **changes)
    assert given is not None
    return given


def cells(heat: Heat) -> list[list[tuple[str, int] | None]]:
    return [[cell and (cell.text, cell.level) for cell in row] for _, row in heat.rows]


def with_rates(*per_s: float, **changes: Any) -> list[Run]:
    """The runs of the grid, at these output tokens a second."""
    measured = make.result(make.experiment(**{"conditions": GRID} | changes)).runs
    return [
        run.model_copy(update={"summary": run.summary and run.summary.model_copy(update={"output_tokens_per_s": rate})})
        for run, rate in zip(measured, per_s, strict=True)
    ]


def test_a_chart_for_each_prompt_length_has_a_curve_for_each_variant() -> None:
    charts = section().charts
    assert [chart.title for chart in charts] == ["prompt tokens 16", "prompt tokens 64"]
    for chart, length in zip(charts, (16, 64), strict=True):
        curves = chart.config["data"]["datasets"]
        assert [curve["label"] for curve in curves] == ["gate_up", "none"]
        for curve in curves:
            assert [point["label"] for point in curve["data"]] == ["1", "4", "8"]
            assert [point["title"] for point in curve["data"]] == [f"{users}×{length}" for users in (1, 4, 8)]


def test_a_single_variant_has_a_curve_for_each_prompt_length() -> None:
    (chart,) = section(vary=ONE).charts
    assert [curve["label"] for curve in chart.config["data"]["datasets"]] == ["prompt tokens 16", "prompt tokens 64"]


def test_a_single_curve_is_named_after_the_variant() -> None:
    (chart,) = section(vary=ONE, conditions=GRID[:3]).charts
    assert [curve["label"] for curve in chart.config["data"]["datasets"]] == ["gate_up"]
    assert chart.config["options"]["plugins"]["legend"]["display"] is False


def test_a_point_is_its_latency_and_throughput() -> None:
    asked = make.experiment(conditions=GRID)
    first = make.result(asked).runs[0].summary
    assert first
    for against, latency in (("", 1.0), ("ttft", 3.0), ("no such", 1.0)):
        (point, *_) = section(against).charts[0].config["data"]["datasets"][0]["data"]
        assert (point["x"], point["y"]) == (latency, first.output_tokens_per_s)


def test_curves_rise_with_the_load_in_whatever_order_it_was_asked() -> None:
    (chart,) = section(vary=ONE, conditions=[GRID[place] for place in (2, 0, 1)]).charts
    assert [point["title"] for point in chart.config["data"]["datasets"][0]["data"]] == ["1×16", "4×16", "8×16"]


def test_in_an_open_loop_the_rate_is_the_load() -> None:
    base = {"model": "olmoe-1b-7b", "workload": {"requests": 4, "output_tokens": 4, "arrivals": "poisson", "rate": 1}}
    given = section(base=base, conditions=[{"rate": 0.5}, {"rate": 2}], vary=ONE)
    assert given.load == "requests a second"
    assert given.heats == []
    (chart,) = given.charts
    (curve,) = chart.config["data"]["datasets"]
    assert [point["label"] for point in curve["data"]] == ["0.5", "2"]
    assert curve["data"][0]["title"] == "8×conversation, rate 0.5"


def test_at_one_rate_concurrency_is_the_load() -> None:
    base = {"model": "olmoe-1b-7b", "workload": {"requests": 4, "output_tokens": 4, "arrivals": "trace"}}
    assert section(base=base, conditions=GRID[:3]).load == "concurrency"


def test_what_varies_beside_load_and_length_has_heat_maps_of_its_own() -> None:
    conditions = [corner | {"output_tokens": tokens} for tokens in (4, 8) for corner in GRID]
    assert [heat.title for heat in section(conditions=conditions, vary=ONE).heats] == [
        "gate_up, output tokens 4", "gate_up, output tokens 8",
    ]  # fmt: skip


def test_a_heat_map_has_loads_downwards_and_lengths_to_the_right() -> None:
    given = section(runs=with_rates(1, 4, 16, 2, 8, 16, vary=ONE), vary=ONE)
    (heat,) = given.heats
    assert (heat.title, heat.lengths, [load for load, _ in heat.rows]) == ("gate_up", ["16", "64"], ["1", "4", "8"])
    # equal ratios: 1 … 16 in four steps of 2
    assert cells(heat) == [[("1.00", 0), ("2.00", 1)], [("4.00", 2), ("8.00", 3)], [("16.0", 4), ("16.0", 4)]]
    assert given.metric == "output tokens a second"


def test_all_variants_share_one_scale() -> None:
    rates = [1, 100, 10, 100, 100, 100, *[100] * 6]
    first, second = section(runs=with_rates(*rates)).heats
    assert [level for row in cells(first) for cell in row if cell for level in cell[1:]] == [0, 4, 2, 4, 4, 4]
    assert {cell[1] for row in cells(second) for cell in row if cell} == {4}


def test_a_scale_that_begins_at_nothing_goes_by_equal_steps() -> None:
    (heat,) = section(runs=with_rates(0, 1, 2, 3, 4, 4, vary=ONE), vary=ONE).heats
    assert [cell and cell[1] for row in cells(heat) for cell in row] == [0, 3, 1, 4, 2, 4]


def test_equal_values_are_all_at_the_least_level() -> None:
    (heat,) = section(metric="ttft", vary=ONE).heats
    assert {cell for row in cells(heat) for cell in row} == {("3.00\N{NO-BREAK SPACE}ms", 0)}


def test_cells_that_are_not_measured_yet_stay_empty() -> None:
    measured = make.result(make.experiment(conditions=GRID, vary=ONE)).runs[:4]
    (heat,) = section(runs=measured, vary=ONE).heats
    assert [[cell is None for cell in row] for row in cells(heat)] == [[False, False], [False, True], [False, True]]


def test_only_figures_that_a_run_has_are_offered() -> None:
    keys = [choice.key for choice in section(metric="e2e-p95").metrics]
    assert "goodput" not in keys
    assert keys == [*list(sweep.METRICS)[:-2], "step"]
    assert next(choice.key for choice in section(metric="goodput").metrics if choice.is_chosen) == "throughput"


def test_without_a_load_that_rises_there_is_no_sweep() -> None:
    assert found(conditions=[GRID[0], GRID[3]]) is None
    assert found(conditions=[]) is None


def test_without_two_runs_with_latencies_there_is_no_sweep() -> None:
    assert found(runs=make.result(make.experiment(conditions=GRID)).runs[:1]) is None
    silent = [None] * 12
    assert found(runs=with_rates(*silent)) is None  # type: ignore[arg-type]


def test_the_table_has_throughput_and_every_latency_of_each_run() -> None:
    given = section()
    assert given.columns == ["Output tokens a second", "TPOT p50", "TPOT p95", "TTFT p50", "TTFT p95"]
    run, values = given.rows[0]
    assert (run.variant, run.condition) == ("gate_up", "1×16")
    assert values[1:] == [f"{ms}.00\N{NO-BREAK SPACE}ms" for ms in (1, 1, 3, 3)]


@pytest.mark.django_db
def test_the_page_shows_the_sweep_that_its_address_asks_for(signed_in: Any, member: Any) -> None:
    row = rows.done(member, conditions=GRID)
    page = signed_in.get(f"{row.get_absolute_url()}?against=ttft-p95&metric=step")
    said = rows.text_of(page)
    assert "Throughput against latency concurrency rises along each curve and stands at its points TPOT p50" in said
    assert "Concurrency × prompt tokens median step;" in said
    assert '?against=ttft-p95&amp;metric=step#heat" aria-current="true">median step' in page.content.decode()
    assert '?against=ttft-p95&amp;metric=step&amp;run=0#run">' in page.content.decode()


@pytest.mark.django_db
def test_stages_at_many_corners_are_folded(signed_in: Any, member: Any) -> None:
    for conditions, folded in ((GRID[:4], False), (GRID[:5], True)):
        page = signed_in.get(rows.done(member, conditions=conditions).get_absolute_url()).content.decode()
        assert ('<details id="more-stages">' in page) == folded
        assert page.count("<details") == page.count("</details>")


@pytest.mark.django_db
def test_a_sweep_fills_in_while_it_runs(signed_in: Any, member: Any) -> None:
    page = signed_in.get(rows.measuring(member, finished=4, conditions=GRID).get_absolute_url())
    assert "stands at its points; so far" in rows.text_of(page)
    assert 'aria-label="Latency of the trade-off"' not in page.content.decode()
