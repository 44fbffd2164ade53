"""Variants of a result against its first one, on made-up runs."""

import numpy as np
import pytest

from bench_worker.comparison import compare_all, compare_runs
from bench_worker.result import Requests
from bench_worker.rotation import turns
from tests.bench_worker.make import made_run, timed_run

STEPS = 200


def noise(seed):
    return np.exp(0.01 * np.random.default_rng(seed).standard_t(3, STEPS))


def a_run(variant="a", condition="1×8", seed=0, steps=STEPS, experts=80.0, **stages):
    times = {"route.gate": 4.0, "route.select": 6.0, "experts": experts, "combine": 10.0, "attention": 100.0, **stages}
    own = {leaf: us * noise(seed + place)[:steps] for place, (leaf, us) in enumerate(times.items())}
    return timed_run(own, steps=steps, variant=variant, condition=condition)


def test_every_stage_and_part_is_compared_beside_the_step_and_the_layer():
    one = compare_runs(a_run(), a_run("b", seed=50), rotation=2)
    assert list(one.quantities) == [
        "step_us", "layer_us", "route", "route.gate", "route.select", "experts", "combine", "attention"
    ]  # fmt: skip
    assert {each.verdict for each in one.quantities.values()} == {"no significant change"}
    assert one.cause is None


def test_a_slower_step_is_blamed_on_the_stage_that_became_slower():
    """6 µs of 200 are 3% of the step; of combine they are 60%."""
    one = compare_runs(a_run(), a_run("b", seed=50, combine=16.0), rotation=2)
    assert one.quantities["step_us"].verdict == "slower"
    assert one.quantities["step_us"].ratio == pytest.approx(1.03, abs=0.004)
    assert one.quantities["combine"].ratio == pytest.approx(1.6, abs=0.01)
    assert one.cause == "combine"


def test_a_faster_step_is_blamed_on_the_stage_that_became_faster():
    """One that became slower at the same time is not to blame."""
    one = compare_runs(a_run(), a_run("b", seed=50, experts=50.0, combine=14.0), rotation=2)
    assert (one.quantities["step_us"].verdict, one.cause) == ("faster", "experts")


def test_no_single_stage_is_blamed_for_what_lies_in_several():
    changed = {"experts": 92.0, "combine": 21.0, "attention": 112.0}
    one = compare_runs(a_run(), a_run("b", seed=50, **changed), rotation=2)
    assert (one.quantities["step_us"].verdict, one.cause) == ("slower", None)


def test_only_whole_rotations_are_compared():
    assert compare_runs(a_run(), a_run("b"), rotation=7).quantities["step_us"].samples == 196
    assert compare_runs(a_run(steps=5), a_run("b", steps=5), rotation=7).quantities == {}


def test_what_the_second_in_a_step_gains_is_no_change_and_nobody_is_blamed_for_it():
    """Each takes 8 µs of 200 longer in experts where it runs first; in one step of two the ratio is 0.96, else 1.04."""
    cold = turns(np.arange(STEPS), 2)
    one = compare_runs(
        a_run(experts=80.0 + 8 * (cold == 0)), a_run("b", seed=50, experts=80.0 + 8 * (cold == 1)), rotation=2
    )
    step = one.quantities["step_us"]
    assert (step.verdict, one.cause) == ("no significant change", None)
    assert step.ratio == pytest.approx(1, abs=0.003)
    assert step.standard_error < 0.005


def test_a_change_is_blamed_on_its_stage_whoever_runs_first():
    """12 µs more in combine, while experts go up and down by 8 µs with the turns."""
    cold = turns(np.arange(STEPS), 2)
    base = a_run(experts=80.0 + 8 * (cold == 0))
    one = compare_runs(base, a_run("b", seed=50, experts=80.0 + 8 * (cold == 1), combine=22.0), rotation=2)
    assert (one.quantities["step_us"].verdict, one.cause) == ("slower", "combine")


def test_a_stage_that_took_no_time_in_some_step_or_is_missing_has_no_ratio():
    now_and_then = np.where(np.arange(STEPS) % 2, 5.0, 0.0)
    base, other = a_run(dispatch=now_and_then), a_run("b", dispatch=5.0, permute=3.0)
    assert {"dispatch", "permute"}.isdisjoint(compare_runs(base, other, rotation=2).quantities)


def requests(count, ttft, tpot):
    flat = [1] * count
    return Requests(
        arrival_ms=[0.0] * count, ttft_ms=[ttft * (1 + i) for i in range(count)], tpot_ms=[tpot, *[None] * (count - 1)],
        itl_ms=[[]] * count, e2e_ms=[ttft * (2 + i) for i in range(count)], prompt_tokens=flat, output_tokens=flat,
    )  # fmt: skip


def test_latencies_are_compared_request_by_request():
    base, other = a_run(), a_run("b")
    base.requests, other.requests = requests(30, 10.0, 2.0), requests(30, 12.0, 2.0)
    found = compare_runs(base, other, rotation=2).quantities
    assert found["ttft_ms"].ratio == pytest.approx(1.2)
    assert found["e2e_ms"].verdict == "slower"
    assert found["tpot_ms"].verdict == "not enough samples"  # one request has more than one token


def test_variants_of_an_open_loop_are_compared_by_their_requests_and_unpaired():
    base, other = a_run(), a_run("b")
    base.requests, other.requests = requests(30, 10.0, 2.0), requests(30, 12.0, 2.0)
    for run in (base, other):
        run.summary = run.summary.model_copy(update={"rounds": 3})
    one = compare_runs(base, other, rotation=2)
    assert list(one.quantities) == ["ttft_ms", "tpot_ms", "e2e_ms"]
    assert not one.quantities["ttft_ms"].paired
    assert one.cause is None


def test_requests_that_did_not_all_finish_are_not_compared():
    base, other = a_run(), a_run("b")
    base.requests, other.requests = requests(30, 10.0, 2.0), requests(29, 10.0, 2.0)
    assert "ttft_ms" not in compare_runs(base, other, rotation=2).quantities


def test_every_contender_stands_against_the_first_variant_and_over_all_conditions():
    runs = [
        a_run(variant, condition, seed, experts=experts)
        for condition, seed in (("1×8", 0), ("4×8", 100))
        for variant, seed, experts in (("a", seed, 80.0), ("b", seed + 20, 80.0), ("c", seed + 40, 100.0))
    ]
    found = compare_all(runs)
    assert [(one.contender, one.condition) for one in found] == [
        ("b", "1×8"), ("c", "1×8"), ("b", "4×8"), ("c", "4×8"), ("b", None), ("c", None)
    ]  # fmt: skip
    assert {one.base for one in found} == {"a"}
    assert found[5].quantities["step_us"].ratio == pytest.approx(1.1, abs=0.005)
    assert found[5].quantities["step_us"].verdict == "slower"
    assert {each.family for one in found for each in one.quantities.values()} == {2}
    assert [one.cause for one in found] == [None, "experts", None, "experts", None, None]


def test_what_is_no_change_after_correction_has_no_cause():
    """Alone p is 0.002, and as one of five it is five times that."""
    base, near = a_run(steps=60), a_run("b", seed=50, steps=60, experts=(86 * noise(907) ** 6)[:60])
    alone = compare_runs(base, near, rotation=6)
    assert (alone.quantities["step_us"].verdict, alone.cause) == ("slower", "experts")
    others = [a_run(name, seed=place * 50, steps=60) for place, name in enumerate("cdef", 2)]
    beside = compare_all([base, near, *others])[0]
    assert beside.quantities["step_us"].p_value == pytest.approx(5 * alone.quantities["step_us"].p_value)
    assert (beside.quantities["step_us"].verdict, beside.cause) == ("no significant change", None)


def test_runs_without_times_are_left_out():
    wrong = made_run(variant="b", condition="1×8", status="wrong result", steps=None, summary=None)
    assert compare_all([a_run(), wrong]) == []
    assert [one.contender for one in compare_all([a_run(), wrong, a_run("c")])] == ["c"]
    assert compare_all([made_run(variant="a", steps=None, summary=None), a_run("c"), a_run("d")]) == []
    assert compare_all([]) == []
