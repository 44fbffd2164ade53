"""How steady and how near to the limit: from what results say to what the page shows."""

from __future__ import annotations

from typing import Any

import pytest

from bench_worker import noise
from bench_worker.noise import Seen
from bench_worker.result import Choice, GraphTimes, Noise, Summary
from tests.webapp.experiments import make
from webapp.experiments import kernels

LABELS = ("steady", "noisy", "drifting", "bimodal", "contended", "unknown")


def runs(*labels: str | None, **changes: Any) -> list[dict[str, Any]]:
    """The first runs of a result as rows hold them, with these labels."""
    found = []
    for run, label in zip(make.result(make.experiment()).runs, labels, strict=False):
        steadiness = None if label is None else Noise(label=label, samples=40, spread=0.02)  # type: ignore[arg-type]
        changed = run.model_copy(update={"noise": steadiness, **changes})
        found.append(changed.model_dump(mode="json", include=set(kernels.READ)))
    return found


def section(*labels: str | None, **changes: Any) -> kernels.Section:
    made = kernels.section(runs(*labels, **changes), {})
    assert made is not None
    return made


@pytest.mark.parametrize("label", LABELS)
def test_every_label_has_its_rule_in_one_line(label: str) -> None:
    assert section(label).runs[0].rule == kernels.RULES[label]
    assert kernels.RULES[label].endswith(".")


def test_the_rules_quote_the_limits_that_decide() -> None:
    assert (noise.NOISY_SPREAD, noise.DRIFT, noise.MODE_GAP, noise.MIN_SAMPLES) == (0.05, 0.03, 0.05, 20)
    assert "more than 5%" in kernels.RULES["noisy"]
    assert "by 3% or more" in kernels.RULES["drifting"]
    assert "5% or more apart" in kernels.RULES["bimodal"]
    assert noise.AWAY == 0.15
    assert "more than 15% away" in kernels.RULES["contended"]
    assert "Fewer than 20 steps" in kernels.RULES["unknown"]


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (("steady",), "The run was steady."),
        (("steady",) * 4, "All 4 runs were steady."),
        (("steady", "noisy"), "1 of 2 runs were steady, 1 noisy."),
        (
            ("bimodal", "noisy", "drifting", "unknown"),
            "0 of 4 runs were steady, 1 noisy, 1 drifting, 1 bimodal, 1 unknown.",
        ),
        (("unknown",), "Too few steps to say how steady the run was."),
        (("unknown", "unknown"), "Too few steps to say how steady the runs were."),
        (("steady", "unknown"), "1 of 2 runs were steady, 1 unknown."),
        ((None, None), "These runs don't tell how steady they were."),
    ],
)
def test_one_sentence_says_how_steady_they_were(labels: tuple[str | None, ...], sentence: str) -> None:
    assert section(*labels).sentence == sentence


def test_a_run_on_a_machine_that_was_not_as_usual_is_warned_about() -> None:
    found = runs("steady", "steady")
    slow = noise.around([Seen(49.0, 900.0)] * 3, Seen(80.0, 1000.0), "memory")
    found[1]["noise"] |= {"label": "contended", "around": slow.model_dump()}
    made = kernels.section(found, {})
    assert made is not None
    assert made.has_around
    assert [run.around and run.around.memory.median for run in made.runs] == [None, 49.0]
    assert made.sentence == "1 of 2 runs were steady, 1 contended."
    [warned] = made.warned
    assert (warned.variant, warned.condition) == (found[1]["variant"], found[1]["condition"])
    assert warned.warning == (
        "The memory bus gave 49 GB/s around this run, 61% of what this machine was calibrated at: its times don't "
        "compare with those of another time."
    )
    assert not section("steady").has_around


def test_a_run_has_a_limit_for_every_stage_that_any_has_one_for() -> None:
    made = section("steady", "steady")
    assert made.stages == ["route", "experts", "attention"]
    assert [limit and limit.share for limit in made.runs[0].limits] == [0.2, 0.9, 0.4]
    assert made.has_limits


def test_an_earlier_result_has_no_limits() -> None:
    old = runs("steady")
    del old[0]["summary"]["limits"]
    made = kernels.section(old, {})
    assert made is not None
    assert (made.stages, made.runs[0].limits, made.has_limits, made.has_idle) == ([], [], False, False)


def test_without_times_there_is_nothing_to_say() -> None:
    assert kernels.section(runs("steady", summary=None), {}) is None


def test_what_auto_chose_is_shown_once_a_variant_with_all_its_candidates() -> None:
    choices = [
        Choice(tokens=1, backend="zentorch", fusion="whole", layer_us={"zentorch": 9.0, "deepspeed": 14.0}),
        Choice(tokens=64, backend="loop", fusion="gate_up", layer_us={"loop": 80.0, "deepspeed": 90.0}),
    ]
    reason = {"padded": "kernels.fusion: 'whole' is not something 'padded' can do; use none or gate_up"}
    made = section(*["steady"] * 4, choices=choices, refused=reason)
    assert [one.variant for one in made.chosen] == ["gate_up", "none"]
    assert made.chosen[0].candidates == ["deepspeed", "loop", "zentorch"]
    assert [size.times_us for size in made.chosen[0].sizes] == [[14.0, None, 9.0], [90.0, 80.0, None]]
    assert made.refused == {"padded": "'whole' is not something 'padded' can do; use none or gate_up"}


def test_graphs_and_device_idle_are_shown_where_there_are_any() -> None:
    assert section("steady").graphs == []
    times = GraphTimes(sampled_steps=9, eager_us=200.0, graph_us=80.0)
    [(run, found)] = section("steady", graphs=times).graphs
    assert (run.variant, run.condition, found) == ("gate_up", "1×16", times)
    idle = runs("steady")
    idle[0]["summary"]["device_idle_share"] = 0.0
    made = kernels.section(idle, {})
    assert made is not None
    assert made.has_idle


def test_only_a_gpu_that_no_check_has_passed_on_is_unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"gpus": [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]}
    assert not kernels.is_unverified({"gpus": []})
    assert kernels.is_unverified(gpu)
    monkeypatch.setattr(kernels, "VERIFIED_GPUS", frozenset(["NVIDIA H200"]))
    assert not kernels.is_unverified(gpu)


def test_floors_stand_in_the_order_of_the_stages_with_their_parts_below() -> None:
    summary = Summary.model_validate(runs("steady")[0]["summary"])
    found = kernels.floors(summary)
    assert [(row.name, row.is_part, row.us) for row in found] == [
        ("route", False, 36.0), ("route.gate", True, 24.0), ("experts", False, 360.0), ("attention", False, 60.0)
    ]  # fmt: skip
    assert found[2].limit == make.LIMITS["experts"]
