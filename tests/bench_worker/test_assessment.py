"""What a run's times say about the machine, on made-up steps."""

import numpy as np
import pytest

from bench_worker.assessment import full_batch_note, limits_of, noise_of, over_the_ceiling_note
from bench_worker.result import Limit
from bench_worker.roofline import Limits, Work

LIMITS = Limits(bytes_per_s=1e9, flops_per_s=1e12)  # 1,000 bytes or a million FLOPs take 1 µs


def test_a_stage_is_held_against_the_floor_of_its_work():
    times = {"experts": np.array([4.0, 8.0])}
    work = {"experts": [Work(weight_bytes=6000), Work(weight_bytes=6000, flops=14e6)]}
    limits = limits_of(times, work, {"experts": 2}, LIMITS)  # a sum over two layers: floors 3 and 7
    # 7 million FLOPs of a layer in 12 µs, and 6,000 bytes for them; all of 4 µs, and 3 / (3 + 7) of 8
    reached = {"flops_per_s": pytest.approx(7e6 / 12e-6), "intensity": pytest.approx(7e6 / 6000)}
    by_memory = pytest.approx((4 + 0.3 * 8) / 12)
    assert limits == {
        "experts": Limit.model_construct(floor_us=5.0, share=10 / 12, bound="compute", by_memory=by_memory, **reached)
    }


def test_what_fits_the_cache_has_no_intensity():
    cached = Limits(bytes_per_s=1e9, flops_per_s=1e12, cache_bytes=1000, resident_bytes=0)
    limits = limits_of({"experts": np.array([4.0])}, {"experts": [Work(2e6, 6000, 900)]}, {"experts": 1}, cached)
    assert limits["experts"].intensity is None
    assert limits["experts"].flops_per_s == pytest.approx(5e11)


def test_a_stage_of_parts_has_the_sum_of_their_floors():
    times = {"route": np.array([10.0]), "route.gate": np.array([4.0]), "route.select": np.array([6.0])}
    work = {"route.gate": [Work(weight_bytes=4000)], "route.select": [Work(row_bytes=2000)]}
    limits = limits_of(times, work, {"route.gate": 1, "route.select": 1}, LIMITS)
    assert [(limit.floor_us, limit.share, limit.bound) for limit in limits.values()] == [
        (6.0, 0.6, "memory"), (4.0, 1.0, "memory"), (2.0, 1 / 3, "overhead")
    ]  # fmt: skip


def test_transfers_between_ranks_have_no_floor_and_no_part_in_a_share():
    times = {
        "attention": np.array([15.0]), "attention.heads": np.array([4.0]), "attention.all_reduce": np.array([6.0]),
        "attention.all_gather": np.array([5.0]),
    }  # fmt: skip
    limits = limits_of(times, {"attention.heads": [Work(weight_bytes=3000)]}, {"attention.heads": 1}, LIMITS)
    assert limits["attention"] == limits["attention.heads"]
    assert (limits["attention"].floor_us, limits["attention"].share) == (3.0, 0.75)
    assert set(limits) == {"attention", "attention.heads"}


def test_two_kinds_of_attention_are_held_apart_and_together():
    times = {
        "attention": np.array([20.0]), "attention.full": np.array([6.0]), "attention.full.all_reduce": np.array([5.0]),
        "attention.sliding": np.array([4.0]), "attention.sliding.all_reduce": np.array([5.0]),
    }  # fmt: skip
    work = {"attention.full": [Work(weight_bytes=3000)], "attention.sliding": [Work(weight_bytes=3000)]}
    shares = {stage: limit.share for stage, limit in limits_of(times, work, dict.fromkeys(work, 1), LIMITS).items()}
    assert shares == {"attention": 0.6, "attention.full": 0.5, "attention.sliding": 0.75}


def test_rows_of_one_layer_may_stay_in_the_cache_whatever_the_layers_take_together():
    cached = Limits(bytes_per_s=1e9, flops_per_s=1e12, cache_bytes=1000)
    limits = limits_of(
        {"attention": np.array([10.0])}, {"attention": [Work(2e6, 6000, 1600)]}, {"attention": 2}, cached
    )
    assert limits["attention"].floor_us == 3.0  # 3,000 bytes of weights and 800 of rows a layer


def test_a_stage_without_work_or_time_has_no_floor():
    times = {"idle": np.array([1.0]), "experts": np.array([0.0])}
    assert limits_of(times, {"experts": [Work()]}, {"experts": 1}, LIMITS) == {}


def test_a_share_above_the_ceiling_is_said():
    fine, over = Limit(floor_us=1, share=1.05, bound="memory"), Limit(floor_us=1, share=1.21, bound="memory")
    assert over_the_ceiling_note({"experts": fine, "experts.routed": over}) is None
    assert over_the_ceiling_note({"experts": over}).startswith("experts reached 121% of the measured ceiling")


def test_steps_are_compared_in_proportion_to_their_floors():
    generator = np.random.default_rng(0)
    floor = generator.uniform(50, 100, 60)  # more or fewer active experts
    tokens = np.repeat([8, 1], 30)
    assert noise_of(floor * 1.3, floor, tokens).spread == pytest.approx(0, abs=1e-12)
    assert noise_of(floor * 1.3, np.zeros(60), tokens).spread > 0.1  # without floors the times themselves


def small_and_full():
    """Ten decode steps of 8 rows on 7 experts, 6 of them with one row, and a prompt of 800 rows on 10."""
    rows, active, few = (np.array([a] * 10 + [b], float) for a, b in ((8, 800), (7, 10), (6, 0)))
    return rows, active, few, np.array([80.0] * 10 + [800.0])


def test_small_decode_batches_are_said_with_their_cost_per_row():
    assert full_batch_note(*small_and_full()) == (
        "Small decode batches: 75% of the active experts had one or two rows in their step, and a row took 10.0 µs of "
        "the experts, 10.0× as much as in a full batch (1.0 µs at 800 rows a layer)."
    )


def test_without_a_full_batch_there_is_nothing_to_compare_with():
    rows, active, few, times = (column[:10] for column in small_and_full())
    assert full_batch_note(rows, active, few, times).endswith("and a row took 10.0 µs of the experts.")


def test_full_batches_are_not_called_small():
    rows, active, _, times = small_and_full()
    assert full_batch_note(rows, active, np.zeros(11), times) is None
