"""What the experiment page shows, from rows and documents."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bench_worker.result import Run
from tests.webapp.experiments import make
from webapp.experiments import present, queue

SCALED = {"vary": None, "conditions": [{"concurrency": 1, "prompt_tokens": 16}]}


def seen(runs: list[Run], **changes: object) -> list[present.Seen]:
    plan = [queue.planned(run) for run in make.experiment(**changes).runs()]
    return present.seen(plan, (run.model_dump(include={"variant", "condition", "status", "summary"}) for run in runs))


def measured(**changes: object) -> list[Run]:
    return make.result(make.experiment(**changes)).runs


def test_a_scaled_number_carries_how_often_a_layer_stands_for_others() -> None:
    assert seen(measured())[0].mark == "×16"
    every_layer = {"base": {"model": "olmoe-1b-7b", "layers": 16}}
    assert seen(measured(**every_layer), **every_layer)[0].mark == ""


@pytest.mark.parametrize(("origin", "mark"), [("scaled", "×16"), ("modelled", "≈×16"), ("assumed", "?×16")])
def test_a_modelled_network_marks_every_whole_time(origin: str, mark: str) -> None:
    asked = make.experiment()
    plan = [{"variant": run.variant, "condition": run.condition, "layer_scale": 16} for run in asked.runs()]
    runs = [run.model_dump() | {"origins": {"step_us": origin}} for run in make.result(asked).runs]
    found = present.matrix(plan, present.seen(plan, runs))
    assert {cell.mark for _, cells in found.rows for cell in cells if cell} == {mark}
    assert found.marks == ["×16"]
    assert [sign for sign, _ in found.networks] == ([] if origin == "scaled" else [mark[0]])


def test_a_matrix_has_a_place_for_what_is_not_measured_yet() -> None:
    plan = [queue.planned(run) for run in make.experiment().runs()]
    first = seen(measured())[:1]
    matrix = present.matrix(plan, first)
    assert matrix.conditions == ["1×16", "4×64"]
    assert matrix.rows == [("gate_up", [first[0], None]), ("none", [None, None])]
    assert matrix.marks == ["×16"]


def test_the_parts_of_a_bar_add_up_to_the_mean_step() -> None:
    for bars in present.bars(seen(measured())):
        for row in bars.rows:
            assert row.run.summary is not None
            assert sum(part.ms for part in row.parts) == pytest.approx(row.run.summary.step_us.mean / 1000)
            assert sum(part.share for part in row.parts) == pytest.approx(1)


def test_variants_are_compared_corner_by_corner_in_time() -> None:
    at_1, at_4 = present.bars(seen(measured()))
    assert (at_1.title, at_4.title) == ("1×16", "4×64")
    assert [row.label for row in at_1.rows] == ["gate_up", "none"]
    assert at_1.config["options"]["unit"] == "ms"
    assert at_1.stages == ["route", "permute", "experts", "combine", "attention", "other"]


def test_a_single_variant_shows_its_corners_as_shares() -> None:
    [bars] = present.bars(seen(measured(vary=None), vary=None))
    assert [row.label for row in bars.rows] == ["1×16", "4×64"]
    assert bars.config["options"]["unit"] == "percent"


def test_a_chart_grows_with_its_bars_and_marks_what_looks_ahead() -> None:
    strategies = ["token_choice", "soft", "expert_choice", "hash", "balanced"]
    vary = {"field": "routing.strategy", "values": strategies}
    found = seen(measured(vary=vary), vary=vary)
    chart = present.bars(found, frozenset(["soft", "expert_choice"]))[0]
    assert chart.config["data"]["labels"] == [
        "token_choice", "soft (non-causal)", "expert_choice (non-causal)", "hash", "balanced"
    ]  # fmt: skip
    assert [row.label for row in chart.rows] == strategies
    assert (chart.size, present.bars(found[:4])[0].size) == ("", "low")
    threads = {"field": "kernels.threads", "values": list(range(1, 12))}
    assert present.bars(seen(measured(vary=threads), vary=threads))[0].size == "tall"


def test_a_wrong_result_has_no_bar() -> None:
    runs = make.result(make.experiment(), wrong=frozenset(["none"])).runs
    assert [row.label for bars in present.bars(seen(runs)) for row in bars.rows] == ["1×16", "4×64"]
    assert present.bars([]) == []


def test_a_steps_stages_add_up_to_its_time() -> None:
    run = measured()[0]
    assert run.steps is not None
    stages = present.step_stages_ms(run.steps, run.scale)
    for step, step_us in enumerate(run.steps.step_us):
        assert sum(times[step] for times in stages.values()) == pytest.approx(step_us / 1000)
    assert list(stages) == ["route", "permute", "experts", "combine", "attention", "other"]


def test_a_long_timeline_is_thinned_and_says_so() -> None:
    run = make.result(make.experiment(), num_steps=1000).runs[0]
    assert run.steps is not None
    timeline = present.timeline(run.steps, run.scale)
    assert (timeline.shown, timeline.steps) == (400, 1000)
    assert len(timeline.config["data"]["labels"]) == 400
    assert timeline.config["data"]["labels"][-1] == 999  # the slowest


def test_stage_rows_put_parts_behind_their_stage() -> None:
    run = measured()[0]
    assert run.summary is not None
    rows = present.stage_rows(run.summary, run.scale)
    assert [row.name for row in rows] == [
        "route", "route.gate", "route.select", "permute", "experts", "combine", "attention", "other"
    ]  # fmt: skip
    route, gate = rows[0], rows[1]
    assert (route.held, route.is_part, gate.held, gate.is_part, gate.share) == (None, False, 16, True, None)
    assert route.share == pytest.approx(run.summary.stage_share["route"])


def test_only_what_differs_from_the_defaults_counts_as_asked() -> None:
    differs, rest = present.asked(make.experiment().document())
    assert differs == {"model": "olmoe-1b-7b", "workload.requests": 4, "workload.output_tokens": 4}
    assert rest["kernels.dtype"] == "bfloat16"
    assert not differs.keys() & rest.keys()


def test_requests_come_as_rows() -> None:
    run = measured()[0]
    assert run.requests is not None
    lengths, latencies = {"prompt_tokens": 16, "output_tokens": 3}, {"ttft_ms": 2.0, "tpot_ms": 1.0, "e2e_ms": 4.0}
    assert present.first_requests(run.requests, limit=1) == [{"request": 0, "arrival_ms": 0.0} | lengths | latencies]
    cut = run.requests.model_copy(update={"request": [3, 41]})
    assert [row["request"] for row in present.first_requests(cut)] == [3, 41]
    old = run.requests.model_copy(update={"request": None})
    assert [row["request"] for row in present.first_requests(old)] == [0, 1]
    assert present.first_requests(run.requests)[1]["tpot_ms"] is None


AT = datetime(2026, 1, 1, 12, 1, tzinfo=UTC)  # a minute after `since`
SINCE = datetime(2026, 1, 1, 12, 0, tzinfo=UTC).timestamp()


def test_the_rest_is_estimated_at_the_pace_so_far() -> None:
    steps = {"done": 20, "total": 50, "since": SINCE}
    progress = {"phase": "measure", "variant": "none", "condition": "4×64", "steps": steps}
    assert present.now(progress, AT) == present.Now("step 20 of 50, variant none, corner 4×64", 40, 90.0)


def test_the_next_corners_warm_up_does_not_hide_how_far_it_is() -> None:
    steps = {"done": 20, "total": 50, "since": SINCE}
    progress = {"phase": "warmup", "variant": "none", "condition": "4×64", "steps": steps}
    assert present.now(progress, AT) == present.Now("warming up, variant none, corner 4×64", 40, 90.0)


@pytest.mark.parametrize(
    ("progress", "doing"),
    [
        ({}, "starting the measuring program"),
        ({"phase": "check", "done": 0, "total": 2, "variant": "none"}, "checking against the reference, variant none"),
        ({"phase": "write", "done": 1, "total": 1, "variant": "", "condition": ""}, "writing the result"),
        ({"phase": "calibrate", "done": 0, "total": 1}, "measuring what the machine can do at best"),
        ({"phase": "reticulate", "done": 1, "total": 1}, "reticulate"),
    ],
)
def test_before_the_first_step_it_says_what_is_done_and_promises_no_end(
    progress: dict[str, object], doing: str
) -> None:
    assert present.now(progress, AT) == present.Now(doing, None, None)


@pytest.mark.parametrize(("done", "percent"), [(0, 0), (50, 100)])
def test_nothing_is_estimated_before_the_first_step_and_after_the_last(done: int, percent: int) -> None:
    progress = {"phase": "measure", "steps": {"done": done, "total": 50, "since": SINCE}}
    assert present.now(progress, AT) == present.Now(f"step {done} of 50", percent, None)


def test_bars_of_several_corners_share_a_scale_where_the_baseline_is_measured() -> None:
    """At 1×16 none takes 2.2 / 1.2 of gate_up, at 4×64 4.2 / 3.2."""
    first, second = present.bars(seen(measured()), base="gate_up")
    for bars, other in ((first, 2.2 / 1.2), (second, 4.2 / 3.2)):
        assert (bars.config["options"]["unit"], bars.against) == ("percent", "gate_up")
        wholes = [sum(one["data"][row] for one in bars.config["data"]["datasets"]) for row in (0, 1)]
        assert wholes == pytest.approx([1, other], rel=1e-3)
        assert bars.config["options"]["scales"]["x"]["max"] == 1.85
    assert [bars.against for bars in present.bars(seen(measured())[:3], base="none")] == ["", ""]
