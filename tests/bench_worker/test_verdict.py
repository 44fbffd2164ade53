"""Runs whose verdict is known beforehand."""

import numpy as np
import pytest

from bench_worker import models, roofline
from bench_worker.assessment import limits_of
from bench_worker.result import Exchange, Limit, Noise
from bench_worker.roofline import Limits
from bench_worker.verdict import overall, verdict
from tests.bench_worker.make import made_run, timed_run

#: About that of a 2-core server: 50 GB/s, 410 GFLOP/s.
CPU = Limits(bytes_per_s=50e9, flops_per_s=410e9)
QWEN = models.presets()["qwen3-30b-a3b"]


def computed(tokens, rows, efficiency=0.8, **around):
    """A layer of qwen3-30b-a3b whose stages reach ``efficiency`` of the floors of their work; ``rows`` [E]."""
    work = roofline.layer_work(QWEN, 2, tokens, rows)
    times = {stage: roofline.floor_us(one, CPU) / efficiency for stage, one in work.items()}
    columns = {stage: np.full(40, us) for stage, us in times.items()}
    limits = limits_of(columns, {s: [one] * 40 for s, one in work.items()}, dict.fromkeys(work, 1), CPU)
    return timed_run(times | around, limits=limits)


def exchange(ranks, network="measured"):
    return Exchange(
        nodes=[0] * ranks, physical_to_logical=[[0] * ranks], rank_of_physical=list(range(ranks)),
        dispatched_bytes=[[0] * ranks] * ranks, fitted_to="nothing", network=network,
    )  # fmt: skip


def limit(by_memory, share=0.9):
    return {"experts": Limit(floor_us=1.0, share=share, bound="memory", by_memory=by_memory)}


def test_a_batch_of_one_streams_weights():
    """Eight experts are read for one row each: 12 FLOPs for 12 bytes take 8 times as long to move as to compute."""
    run = computed(1, [1] * 8 + [0] * 120)
    found = verdict(run)
    assert found.dominant == "weights"
    assert found.shares["weights"] / found.shares["compute"] == pytest.approx(410 / 50, rel=0.01)


def test_a_prefill_of_8k_tokens_computes():
    found = verdict(computed(8192, [512] * 128))
    assert found.dominant == "compute"
    assert found.shares["compute"] > 0.9


def test_a_rank_with_half_of_all_assignments_keeps_the_others_waiting():
    """Of eight ranks one computes 70 µs and each of the others 10: they wait 60 of 70, on average 52.5."""
    ranks = [{"experts": 70.0, "idle": 0.0}, *[{"experts": 10.0, "idle": 60.0}] * 7]
    found = verdict(timed_run(*ranks, limits=limit(0.1), exchange=exchange(8)))
    assert found.dominant == "waiting"
    assert found.shares["waiting"] == pytest.approx(52.5 / 70)
    assert found.origin == "measured"


@pytest.mark.parametrize(("network", "word"), [("assumed", "With an assumed network"), ("modelled", "With a modelled")])
def test_wires_of_1_gb_a_second_are_the_cost_and_are_named_as_what_they_are(network, word):
    """1,024 tokens to 8 experts are 2 · 8,192 rows of 4,096 bytes: 67 ms there and back, against 30 ms of experts."""
    wire_us = 1024 * 8 * 4096 / 1e9 * 1e6
    rank = {"experts": 30_000.0, "dispatch": wire_us, "combine.transfer": wire_us, "combine.reduce": 500.0}
    found = verdict(timed_run(rank, rank, limits=limit(0.5), exchange=exchange(2, network)))
    assert found.dominant == "communication"
    assert found.shares["communication"] == pytest.approx(2 * wire_us / (2 * wire_us + 30_500))
    assert found.origin == network
    assert found.sentence.startswith(word)
    assert all(network in one.sentence for one in found.advice if "communication" in one.sentence)


def test_measured_wires_need_no_word():
    rank = {"experts": 10.0, "dispatch": 50.0}
    found = verdict(timed_run(rank, rank, limits=limit(0.5), exchange=exchange(2)))
    assert found.sentence == "Communication takes 83% of a step; next is weight streaming (8%)."


def test_what_was_only_counted_says_nothing_of_times():
    counted = exchange(2, "modelled").model_copy(update={"count_only": True})
    found = verdict(timed_run({"dispatch": 10.0}, exchange=counted))
    assert (found.dominant, found.advice) == ("undecided", [])
    assert found.sentence.startswith("Only counted: no expert was computed")


def test_nearly_equal_shares_are_undecided():
    run = timed_run({"experts": 48.0, "route.select": 50.0}, limits=limit(1.0))
    found = verdict(run)
    assert found.dominant == "undecided"
    assert found.sentence == (
        "Undecided: routing and packing (51%) and weight streaming (49%) of a step are within noise."
    )


def test_few_noisy_steps_need_a_larger_lead():
    """A lead of ten points. Three standard errors of 20% over 25 steps are twelve; over 100 steps six."""
    run = timed_run({"experts": 55.0, "permute": 45.0}, limits=limit(1.0))
    assert verdict(run).dominant == "weights"
    run.noise = Noise(label="noisy", samples=25, spread=0.2)
    assert verdict(run).dominant == "undecided"
    run.noise = Noise(label="noisy", samples=100, spread=0.2)
    assert verdict(run).dominant == "weights"


def test_every_stage_belongs_to_one_cost_and_the_shares_sum_to_one():
    stages = {
        "route.gate": 1.0, "route.select": 2.0, "permute": 3.0, "dispatch": 4.0, "experts.routed": 10.0,
        "experts.shared": 6.0, "combine.transfer": 5.0, "combine.reduce": 7.0, "attention.full": 8.0,
        "attention.sliding": 9.0, "other.head": 11.0, "idle": 12.0, "attention.full.all_reduce": 13.0,
        "attention.all_gather": 14.0, "other.head.all_gather": 15.0,
    }  # fmt: skip
    shares = verdict(timed_run(stages, limits=limit(0.75))).shares
    times = {
        "weights": 12, "compute": 4, "communication": 9 + 42, "waiting": 12, "overhead": 13, "attention": 28
    }  # fmt: skip
    assert shares == pytest.approx({cost: us / 120 for cost, us in times.items()})


def test_what_the_whole_model_holds_counts_as_often():
    shares = verdict(timed_run({"experts": 1.0, "other.head": 1.0}, counts={"experts": 48}, limits=limit(1.0))).shares
    assert shares["weights"] == pytest.approx(48 / 49)


def test_without_the_machines_limits_weights_and_compute_are_not_told_apart():
    found = verdict(timed_run({"experts": 10.0}))
    assert (found.dominant, found.shares["weights"], found.shares["compute"]) == ("undecided", 0.5, 0.5)
    assert "limits are not known" in found.sentence


def test_memory_stands_beside_it():
    run = timed_run({"experts": 10.0})
    found = verdict(run)
    assert found.memory_bytes == run.fit["deployment"].total_bytes
    assert found.device_bytes == 10**10


def test_a_run_without_times_has_no_verdict():
    run = made_run(steps=None, summary=None)
    with pytest.raises(ValueError, match="base at 1×8 has no times"):
        verdict(run)
    assert overall([run]) is None


def test_one_condition_is_the_whole_verdict():
    run, other = (timed_run({"experts": 9.0, "permute": 1.0}, limits=limit(1.0), variant=name) for name in "ab")
    found = overall([run, other])
    assert list(found.runs) == ["a at 1×8", "b at 1×8"]
    assert (found.dominant, found.sentence) == ("weights", verdict(run).sentence)


def test_conditions_that_agree_give_their_mean():
    runs = [
        timed_run({"experts": 8.0, "permute": 2.0}, limits=limit(1.0), condition="1×8"),
        timed_run({"experts": 6.0, "permute": 4.0}, limits=limit(1.0), condition="4×8"),
    ]
    found = overall(runs)
    assert found.dominant == "weights"
    assert found.shares["weights"] == pytest.approx(0.7)
    assert found.sentence == "Weight streaming takes most at every corner: 70% on average."


def test_conditions_that_disagree_are_undecided_and_named():
    runs = [
        timed_run({"experts": 10.0}, limits=limit(1.0), condition="1×8"),
        timed_run({"experts": 10.0}, limits=limit(0.0), condition="16×2048"),
    ]
    found = overall(runs)
    assert found.dominant == "undecided"
    assert found.sentence == "Undecided: weights at 1×8, compute at 16×2048."


def test_over_all_conditions_the_least_certain_network_is_named():
    runs = [
        timed_run({"dispatch": 9.0, "permute": 1.0}, condition=condition, exchange=exchange(2, network))
        for condition, network in (("1×8", "modelled"), ("4×8", "assumed"))
    ]
    found = overall(runs)
    assert (found.dominant, found.origin) == ("communication", "assumed")
    assert found.sentence.startswith("With an assumed network, communication takes most at every corner")
