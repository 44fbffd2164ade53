"""A result as text: the overview, and any one part."""

import pytest

from bench_worker.errors import SpecError
from bench_worker.findings import Comparison, RunComparison
from bench_worker.result import Check, Result, TailSteps
from bench_worker.show import overview, part, read_result
from bench_worker.verdict import overall
from tests.bench_worker.make import made_result, made_run, timed_run

DOCUMENT = {
    "a": {"route": 1, "route.gate": {"x": 2}, "empty": {}},
    "b": [10, {"c": None}, []],
}


def test_the_overview_has_machine_check_steps_and_stages():
    assert overview(made_result()).splitlines() == [
        "Untitled experiment on here",
        "",
        "base at 1×8: ok, error 1.0e-03 (at most 1e-02)",
        "  step 0.00 ms (scaled, median of 1)",
        "  route                   0.002 ms   100.0% of the step",
    ]


def test_what_users_feel_stands_below_the_stages_with_the_steps_behind_each_p95():
    ttft = TailSteps(request=41, value_ms=1.0, steps=[3, 4, 5], reason="prefill of request 7 in the way")
    run = made_run()
    run.summary.tails, run.summary.requests_per_s = {"ttft_ms": ttft}, 2.5
    assert overview(made_result(run)).splitlines()[5:] == [
        "  TTFT p50 1.0 ms, p95 1.0 ms (3 steps: prefill of request 7 in the way)",
        "  2.50 requests a second",
    ]
    run.summary.goodput_per_s, ttft.steps = 0.25, [3]
    assert "(1 step: prefill of request 7 in the way)" in overview(made_result(run))
    assert overview(made_result(run)).endswith("  2.50 requests a second, 0.25 within the limits")


def test_a_run_without_times_shows_why():
    check = Check(rel_error=None, tolerance=0.01, tokens=8)
    run = made_run(check=check, status="wrong result", summary=None, notes=["It was cut off."])
    assert overview(made_result(run)).splitlines()[2:] == [
        "base at 1×8: wrong result, error not a number (at most 1e-02)",
        "  It was cut off.",
    ]


def test_variants_are_held_against_the_first_and_the_verdict_stands_last():
    sure = Comparison(ratio=1.04, ci95=(1.03, 1.0512), p_value=1e-9, samples=196, verdict="slower")
    few = Comparison(ratio=1.2, samples=7, verdict="not enough samples")
    result = made_result()
    result.comparisons = [
        RunComparison(base="a", contender="b", condition="1×8", quantities={"step_us": sure}, cause="experts"),
        RunComparison(base="a", contender="c", condition="1×8", quantities={"step_us": few}),
        RunComparison(base="a", contender="b", condition=None, quantities={"step_us": sure}),
        RunComparison(base="a", contender="d", condition="1×8", quantities={}),
    ]
    run = timed_run({"experts": 8.0, "permute": 2.0})
    result.verdict = overall([run])
    lines = overview(result).splitlines()
    assert lines[5] == f"  {result.verdict.sentence}"
    assert lines[6:10] == [
        "",
        "b against a at 1×8: step × 1.040 (1.030 to 1.051, p 1e-09), 196 steps, slower, in experts",
        "c against a at 1×8: step × 1.200, 7 steps, not enough samples",
        "b against a over all conditions: step × 1.040 (1.030 to 1.051, p 1e-09), 196 steps, slower",
    ]
    assert lines[11].startswith("Verdict: undecided. Undecided: weight streaming (40%) and expert compute (40%)")
    assert lines[12].startswith(
        "  weights 40%, compute 40%, communication 0%, waiting 0%, overhead 20%, attention 0%; "
    )
    assert lines[12].endswith(" GB of the 10.0 GB that were free here")
    assert lines[13] == "  Try next: concurrency 32: weight streaming is 40%"


def test_where_the_devices_memory_is_unknown_it_is_not_told():
    result = made_result()
    result.verdict = overall([timed_run({"experts": 8.0})]).model_copy(update={"device_bytes": None})
    assert "free here" not in overview(result)


def test_a_result_without_a_title_machine_or_origin_is_shown_all_the_same():
    bare = Result(experiment={}, environment={}, runs=[made_run(origins={})])
    lines = overview(bare).splitlines()
    assert lines[0] == "Untitled experiment on a machine without a name"
    assert lines[3] == "  step 0.00 ms (origin unknown, median of 1)"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a.route", 1),
        ("a.route.gate.x", 2),
        ("a.route.gate", {"x": 2}),
        ("b.0", 10),
        ("b.1.c", None),
        ("b", DOCUMENT["b"]),
    ],
)
def test_any_part_is_found_by_its_dotted_name(path, value):
    assert part(DOCUMENT, path) == value


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("c", "c: there is no such part; a result has a, b"),
        ("a.rout", "a.rout: there is no such part; a has route, route.gate, empty"),
        ("a.route.gate.y", "a.route.gate.y: there is no such part; a.route.gate has x"),
        ("a.empty.x", "a.empty.x: there is no such part; a.empty is empty"),
        ("b.3", "b.3: there is no such part; b is a list of 3, counted from 0"),
        ("b.-1", "b.-1: there is no such part; b is a list of 3, counted from 0"),
        ("b.x", "b.x: there is no such part; b is a list of 3, counted from 0"),
        ("b.0.x", "b.0.x: there is no such part; b.0 is 10"),
        ("b.1.c.d", "b.1.c.d: there is no such part; b.1.c is None"),
    ],
)
def test_a_part_that_is_not_there_is_told_what_is(path, sentence):
    with pytest.raises(SpecError) as caught:
        part(DOCUMENT, path)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "the document: Invalid JSON: "),
        (b"\xff\xfe", "the document: Invalid JSON: "),
        (b"[]", "the document: "),
        (b'{"base": {"model": "olmoe-1b-7b"}}', "experiment: Field required"),
        (b'{"schema": 2, "experiment": {}, "environment": {}, "runs": []}', "schema: Input should be 1"),
    ],
)
def test_a_file_that_is_no_result_gets_one_sentence(data, why):
    with pytest.raises(SpecError) as caught:
        read_result(data, "x.json")
    assert str(caught.value).startswith(f"result: x.json is not a result file of schema 1 ({why}")
    assert "\n" not in str(caught.value)


def test_a_result_is_read_from_its_bytes():
    assert read_result(made_result().model_dump_json(by_alias=True).encode(), "x.json") == made_result()


def test_what_rounding_the_weights_changes_is_told():
    check = Check(rel_error=0.005, tolerance=0.01, tokens=8, quantization_error=0.1234)
    lines = overview(made_result(made_run(check=check))).splitlines()
    assert lines[3] == "  rounding the weights changes outputs by 12.3% (random weights)"
