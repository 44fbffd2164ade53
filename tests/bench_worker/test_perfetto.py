"""Steps as trace events, checked against the format and against the result's own times."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.errors import SpecError
from bench_worker.perfetto import MOST_STEPS, chosen_steps, trace
from tests.bench_worker.make import made_run, timed_run

RANK = {"route.gate": 1.5, "route.select": 2.5, "experts": 10.0, "combine": 3.0, "attention": 7.0, "other.head": 0.5}


def with_stages(run):
    """Stages beside their parts, as a result has them."""
    for rank in run.steps.ranks:
        rank.stages_us["route"] = [
            gate + select
            for gate, select in zip(rank.stages_us["route.gate"], rank.stages_us["route.select"], strict=True)
        ]
        rank.stages_us["other"] = rank.stages_us["other.head"]
    return run


@pytest.fixture
def two_ranks():
    return with_stages(timed_run({**RANK, "idle": 0.0}, {**RANK, "experts": 4.0, "idle": 6.0}, steps=5))


def slices(document, kind, **where):
    return [
        event
        for event in document["traceEvents"]
        if event.get("cat") == kind and all(event[name] == value for name, value in where.items())
    ]


def test_every_event_is_one_of_the_trace_event_format(two_ranks):
    document = json.loads(json.dumps(trace(two_ranks, "0,1,4"), allow_nan=False))
    assert document["displayTimeUnit"] in ("ms", "ns")
    for event in document["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name")
        else:
            assert event["ph"] == "X"
            assert event["ts"] >= 0
            assert event["dur"] >= 0


def test_ranks_are_processes(two_ranks):
    names = {e["pid"]: e["args"]["name"] for e in trace(two_ranks, "0")["traceEvents"] if e["name"] == "process_name"}
    assert names == {0: "rank 0", 1: "rank 1"}


def test_the_durations_of_a_ranks_stages_sum_to_its_times(two_ranks):
    document = trace(two_ranks, "0-4")
    for rank in two_ranks.steps.ranks:
        for stage in ("route", "experts", "combine", "attention", "other"):
            drawn = slices(document, "stage", pid=rank.rank, name=stage)
            assert sum(event["dur"] for event in drawn) == pytest.approx(sum(rank.stages_us[stage]))
        idle = slices(document, "stage", pid=rank.rank, name="idle")
        assert sum(event["dur"] for event in idle) == pytest.approx(sum(rank.idle_us))
        for part in ("route.gate", "route.select", "other.head"):
            drawn = slices(document, "part", pid=rank.rank, name=part)
            assert sum(event["dur"] for event in drawn) == pytest.approx(sum(rank.stages_us[part]))


def test_slices_of_a_rank_lie_one_after_the_other_within_what_holds_them(two_ranks):
    document = trace(two_ranks, "0,3")
    for rank in (0, 1):
        for inner, outer in (("part", "stage"), ("stage", "step")):
            held = slices(document, outer, pid=rank)
            for one in slices(document, inner, pid=rank):
                assert any(
                    o["ts"] <= one["ts"] + 1e-9 and one["ts"] + one["dur"] <= o["ts"] + o["dur"] + 1e-9 for o in held
                )
        drawn = slices(document, "stage", pid=rank)
        assert [event["name"] for event in drawn[:5]] == ["attention", "route", "experts", "combine", "other"] or rank
        for one, other in pairwise(drawn):
            assert one["ts"] + one["dur"] == pytest.approx(other["ts"]) or other["ts"] > one["ts"] + one["dur"]


def test_a_step_begins_on_all_ranks_when_the_slowest_has_ended_the_one_before(two_ranks):
    starts = {rank: [e["ts"] for e in slices(trace(two_ranks, "0-1"), "step", pid=rank)] for rank in (0, 1)}
    assert starts[0] == starts[1] == pytest.approx([0.0, 24.5])


def test_a_step_says_what_it_computed(two_ranks):
    step = slices(trace(two_ranks, "3"), "step", pid=0)[0]
    assert step["name"] == "step 3"
    assert step["args"]["decode_tokens"] == 1
    assert step["args"]["whole_model_step_us"] == 24.5


def test_a_stage_that_took_no_time_is_not_drawn(two_ranks):
    assert slices(trace(two_ranks, "0"), "stage", pid=0, name="idle") == []


def test_a_run_without_times_has_no_trace():
    with pytest.raises(SpecError, match=r"base at 1×8 has no times, so no trace"):
        trace(made_run(steps=None, summary=None), "0")


@pytest.mark.parametrize(
    ("text", "places"), [("0", [0]), ("0,5-7", [0, 5, 6, 7]), (" 3 , 1", [3, 1]), ("2-2", [2]), ("9", [9])]
)
def test_steps_are_named_by_their_places(text, places):
    assert chosen_steps(text, 10) == places


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no steps; it must be like 0,5-9"),
        ("a", "names no steps"),
        ("-1", "names no steps"),
        ("1-", "names no steps"),
        ("1-2-3", "names no steps"),
        ("٣", "names no steps"),
        ("1" * 5000, "names no steps"),
        ("10", "10 is not within the run's steps, which are 0 to 9"),
        ("0,7-5", "7-5 is not within"),
    ],
)
def test_it_refuses_what_names_no_steps(text, message):
    with pytest.raises(SpecError, match=message) as caught:
        chosen_steps(text, 10)
    assert caught.value.field == "steps"


def test_a_trace_has_a_limit_of_steps():
    assert len(chosen_steps(f"0-{MOST_STEPS - 1}", 10_000)) == MOST_STEPS
    with pytest.raises(SpecError, match=r"names more than 1,000 steps, the most of a trace"):
        chosen_steps(f"0-{MOST_STEPS}", 10_000)


@given(st.text("0123456789,- ", max_size=12))
def test_any_text_names_steps_of_the_run_or_is_refused(text):
    try:
        places = chosen_steps(text, 100)
    except SpecError:
        return
    assert places
    assert all(0 <= place < 100 for place in places)
