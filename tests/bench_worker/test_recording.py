"""From raw step times to a run's numbers, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from bench_worker import capacity, models, recording
from bench_worker.noise import Seen
from bench_worker.outcome import Outcome
from bench_worker.recording import RunRecord, StepRecord
from bench_worker.result import Check
from bench_worker.roofline import Work
from bench_worker.spec import PlannedRun, Spec
from bench_worker.workload import Request
from bench_worker.workload.recordings import from_counts, from_ids
from bench_worker.workload.schedule import closed_loop
from tests.bench_worker.test_ceilings import made as ceilings

MODEL = models.presets()["olmoe-1b-7b"]  # 16 layers, all MoE
GOOD = Check(rel_error=0.001, tolerance=0.01, tokens=8)


def outcome(rows, dropped=0, common=1, either=1):
    return Outcome(np.array(rows), np.eye(65, dtype=np.int64)[8], dropped, common, either)


def record(times, executed_layers=1, experts=None, whole_us=None):
    """One request of 4 prompt tokens and ``len(times)`` output tokens, one step each."""
    batches = closed_loop([Request(0, 4, len(times))], 1, 8)
    made = RunRecord()
    for index, (batch, step_times) in enumerate(zip(batches, times, strict=True)):
        assigned = 8 * batch.tokens * executed_layers
        step = StepRecord(
            index, batch.prefill_tokens, batch.decode_tokens, assigned, 0, assigned, 100, step_times, whole_us
        )
        made.add(step, outcome(experts or [[assigned // executed_layers] + [0] * 63] * executed_layers))
    made.end_pass(batches, truncated=False)
    return made


def run(made, check=GOOD, **spec):
    planned = PlannedRun("base", "1×4", Spec.model_validate({"model": "olmoe-1b-7b", **spec}))
    return recording.run(planned, MODEL, check, {}, 10, made)


TIMES = {"other.embedding": 2.0, "attention": 10.0, "route.gate": 1.0, "route.select": 3.0, "permute": 2.0,
         "experts": 30.0, "combine": 4.0, "layer": 0.1, "other.head": 8.0}  # fmt: skip


def test_a_step_is_every_layer_plus_embedding_and_head():
    # 16 · (10 + 1 + 3 + 2 + 30 + 4) + 2 + 8 = 810
    result = run(record([TIMES, TIMES]))
    assert result.steps.step_us == [810.0, 810.0]
    assert result.steps.layer_us == [40.0, 40.0]
    assert result.scale.counts["experts"] == 16
    assert result.scale.counts["other.head"] == 1
    assert result.origins == {
        "layer_us": "measured",
        "stages_us": "measured",
        "step_us": "scaled",
        "requests": "scaled",
    }


def test_times_of_several_executed_layers_are_their_mean():
    doubled = {leaf: 2 * us for leaf, us in TIMES.items() if not leaf.startswith("other")}
    result = run(record([doubled | {"other.embedding": 2.0, "other.head": 8.0}], executed_layers=2), layers=2)
    assert result.steps.step_us == [810.0]
    assert result.steps.layer_us == [40.0]


def test_what_the_probes_saw_stands_beside_the_runs_noise():
    made = record([TIMES] * 3)
    made.steps = [replace(step, work={"experts": Work(weight_bytes=1.5e6)}) for step in made.steps]
    made.seen, made.usual = [Seen(30, 800.0), Seen(36, 800.0), Seen(30, 800.0)], Seen(60, 900.0)
    planned = PlannedRun("base", "1×4", Spec.model_validate({"model": "olmoe-1b-7b"}))
    fit = {"measurement": capacity.fit_measurement(planned.spec, None, tokens_per_sequence=10)}
    found = recording.run(planned, MODEL, GOOD, fit, 10, made, ceilings())
    around = found.noise.around  # 25 µs of the layer's 40 at 60 GB/s
    assert (around.decides, around.memory.share, around.matrix.share) == ("memory", 0.5, 800 / 900)
    assert found.noise.label == "contended"
    assert found.notes[-1].startswith("The memory bus gave 30 GB/s around this run, 50% of what")
    long = {**TIMES, "experts": 1e6}  # one step full of prompts outweighs the others, but the median is theirs
    made.steps[0] = replace(made.steps[0], times_us=long, work={"experts": Work(flops=0.9e12)})
    found = recording.run(planned, MODEL, GOOD, fit, 10, made, ceilings())
    assert found.noise.around.decides == "memory"
    unseen = record([TIMES] * 3)
    assert recording.run(planned, MODEL, GOOD, fit, 10, unseen, ceilings()).noise.around is None


def test_stages_hold_their_parts_and_no_outer_mark():
    stages = run(record([TIMES])).steps.ranks[0].stages_us
    assert stages["route"] == [4.0]
    assert stages["route.gate"] == [1.0]
    assert stages["other"] == [10.0]
    assert "layer" not in stages


def test_shares_of_the_step_sum_to_one():
    share = run(record([TIMES, TIMES])).summary.stage_share
    assert sum(share.values()) == pytest.approx(1.0)
    assert share["experts"] == pytest.approx(16 * 30 / 810)
    assert share["other"] == pytest.approx(10 / 810)


def test_requests_see_whole_model_steps():
    # Three tokens in three steps of 810 µs: the first after one, the others 810 µs apart.
    result = run(record([TIMES, TIMES, TIMES]))
    assert result.requests.ttft_ms == [0.81]
    assert result.requests.tpot_ms == [0.81]
    assert result.requests.itl_ms == [[0.81, 0.81]]
    assert (result.requests.request, result.requests.wait_ms, result.requests.preempted_ms) == ([0], [0.0], [[]])
    assert result.requests.e2e_ms == [2.43]
    assert result.summary.output_tokens_per_s == pytest.approx(3 / 2.43e-3)


def test_repeats_are_separate_passes_over_the_trace():
    made = record([TIMES, TIMES])
    once = record([TIMES, TIMES])
    for step in once.steps:
        made.add(step, outcome([[8] + [0] * 63]))
    made.end_pass(once.passes[0].batches, truncated=False)
    assert run(made).requests.e2e_ms == [1.62, 1.62]


def test_expert_imbalance_is_the_hottest_over_the_mean_a_layer():
    experts = [[4, 2, 2] + [0] * 61, [8] * 64]  # max/mean 4/(8/64) = 32, and 1
    assert run(record([TIMES], executed_layers=2, experts=experts), layers=2).summary.expert_imbalance == 16.5


def test_the_stages_are_compared_with_the_layer_as_a_whole():
    clock = run(record([TIMES], whole_us=40.0)).clock
    assert (clock.sampled_steps, clock.sum_over_whole) == (1, pytest.approx(1.0))
    assert run(record([TIMES])).clock.sum_over_whole is None


def test_a_variant_that_failed_its_check_gets_no_times():
    result = run(None, check=Check(rel_error=0.5, tolerance=0.01, tokens=8))
    assert result.status == "wrong result"
    assert (result.steps, result.requests, result.summary) == (None, None, None)


def test_a_run_that_was_cut_off_says_so():
    made = record([TIMES])
    made.end_pass([], truncated=True)
    result = run(made)
    assert result.summary.truncated
    assert result.notes == ["max_seconds cut this run off after 1 steps (pass 2)."]


def test_a_run_cut_off_before_its_first_step_has_no_times_and_says_so():
    made = RunRecord()
    made.end_pass([], truncated=True)
    result = run(made)
    assert result.summary is None
    assert "after 0 steps" in result.notes[0]


def test_without_attention_there_are_no_request_latencies():
    layer_only = {leaf: us for leaf, us in TIMES.items() if leaf not in ("attention", "other.embedding", "other.head")}
    result = run(record([layer_only]), kernels={"attention": False})
    assert result.requests is None
    assert result.summary.ttft_ms is None
    assert result.summary.output_tokens_per_s is None
    assert result.steps.step_us == [16 * 40.0]
    assert "no request latencies" in result.notes[0].replace("there are no", "no")


def test_a_strategy_that_looks_ahead_says_so():
    notes = run(record([TIMES]), routing={"strategy": "expert_choice"}).notes
    assert notes == [
        "expert_choice is non-causal: a token's result depends on later tokens of its step, which rules out decoding "
        "token by token."
    ]
    assert run(record([TIMES]), routing={"strategy": "expert_choice"}).routing.causal is False
    assert run(record([TIMES])).routing.causal is True


def test_slots_that_are_counted_as_assignments_are_called_slots():
    notes = run(record([TIMES]), routing={"strategy": "soft"}).notes
    assert notes[1] == "soft has no assignments; its slots are counted in their place."


RECORDED = {"profile": "recorded", "recording": "mine", "correlation": 0.5}


def noted(load, recorded):
    planned = PlannedRun("base", "1×4", Spec.model_validate({"model": "olmoe-1b-7b", "load": load}))
    return recording.run(planned, MODEL, GOOD, {}, 10, record([TIMES]), recorded=recorded).notes


def test_a_recorded_load_is_named_with_what_was_left_out():
    recorded = replace(from_counts(np.ones((2, 64), np.int64)), dropped_rows=3000)
    assert noted(RECORDED, recorded) == [
        "The expert load is recorded: mine, 2 layers of 64 experts, counted.",
        "3,000 rows of a profiling pass were left out of the recording.",
        "Scores of a request's consecutive tokens are correlated (0.5).",
    ]


def test_a_replay_needs_no_correlation():
    recorded = from_ids(np.arange(64).reshape(8, 1, 8))
    assert noted(RECORDED, recorded)[-1] == "The recorded tokens are replayed one by one, so correlation is not used."


def test_what_routing_came_to_is_in_the_result():
    made = record([TIMES, TIMES], experts=[[5, 3] + [0] * 62])
    found = run(made).routing
    assert (found.assignments, found.expert_overlap) == (16, 1.0)
    assert found.rows_per_expert == [124, 0, 2, 2]  # none; 1; 2 to 3; 4 to 7
    assert found.expert_assignments_over_time == [[5, 3] + [0] * 62] * 2
    assert found.steps_per_group == 1
