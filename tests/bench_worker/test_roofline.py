"""Work and floors of stages, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.models import presets
from bench_worker.roofline import Limits, Work, around_work, bound, expert_work, floor_us, layer_work, step_work
from bench_worker.spec import Spec
from bench_worker.workload.schedule import Batch

QWEN = presets()["qwen3-30b-a3b"]  # H 2048, I 768, E 128, 32 query and 4 key-value heads of 128, vocab 151,936
DEEPSEEK = presets()["deepseek-v3"]  # MLA: 128 heads, latent 512, 128 + 64 and 128; 3 dense layers of 18,432
GPT_OSS = presets()["gpt-oss-20b"]  # every second layer looks back 128 tokens


def batch(*entries):
    """(prefill, decode, context) of each request; all yield."""
    table = np.array([(index, *entry) for index, entry in enumerate(entries)])
    yes = np.ones(len(entries), bool)
    return Batch(table, yields=yes, ends=~yes, arrivals=np.zeros(0, int))


def spec(model, layers=1, **kernels):
    return Spec.model_validate({"model": model, "layers": layers, "kernels": kernels})


def test_experts_read_the_weights_of_the_active_ones_only():
    work = expert_work(hidden=4, intermediate=3, size=2, rows=[5, 0, 1, 0])
    assert work.flops == 2 * 6 * 36  # 6 rows through 3 · 4 · 3 weights
    assert work.weight_bytes == 2 * 36 * 2  # two experts of 36 weights of 2 bytes
    assert work.row_bytes == 6 * (2 * 4 + 3 * 3) * 2


def test_one_token_of_qwen3_reads_eight_experts():
    rows = [1] * 8 + [0] * 120
    work = layer_work(QWEN, size=2, tokens=1, rows=rows)
    assert work["experts"].weight_bytes == 75_497_472  # 8 · 3 · 2048 · 768 · 2
    assert work["experts"].flops == 75_497_472  # as many: each weight of 2 bytes is multiplied and added once
    assert work["route.gate"] == Work(2 * 2048 * 128, 2048 * 128 * 2, (2048 + 128) * 2)
    assert work["route.select"] == Work(row_bytes=4 * 128 + 20 * 8)
    assert work["permute"] == work["combine"] == Work(row_bytes=9 * 2048 * 2)


def test_at_50_gb_a_second_that_is_a_millisecond_and_a_half():
    work = layer_work(QWEN, 2, 1, [1] * 8 + [0] * 120)["experts"]
    assert floor_us(work, Limits(50e9, 400e9, cache_bytes=2**25)) == pytest.approx(1509.9, abs=0.1)


def test_2048_tokens_of_qwen3_are_bound_by_arithmetic():
    work = layer_work(QWEN, 2, 2048, [128] * 128)["experts"]
    limits = Limits(50e9, 400e9, cache_bytes=2**25)
    assert limits.compute_us(work) == pytest.approx(386_547, abs=1)  # 2 · 16,384 · 4,718,592 / 400e9
    # 1.208 GB of weights; 16,384 · 6,400 · 2 bytes of rows, less 32 MB that the cache holds
    assert limits.memory_us(work) == pytest.approx((1_207_959_552 + 209_715_200 - 33_554_432) / 50e3, rel=1e-9)
    assert floor_us(work, limits) == limits.compute_us(work)


def test_the_shared_expert_is_apart_and_sees_every_token():
    work = layer_work(DEEPSEEK, 2, 5, [1] * 40 + [0] * 216)
    assert "experts" not in work
    assert work["experts.routed"].weight_bytes == 40 * 3 * 7168 * 2048 * 2
    assert work["experts.shared"] == expert_work(7168, 2048, 2, [5])


def test_soft_routing_moves_tokens_by_matrix_products():
    work = layer_work(QWEN, 2, tokens=10, rows=[2] * 128, mixing=True)
    assert work["permute"].flops == work["combine"].flops == 2 * 10 * 256 * 2048


def test_executed_layers_add_up_and_the_rest_stands_once():
    rows = [1] * 8 + [0] * 120
    one, two = (step_work(spec(QWEN.name, n), QWEN, batch((0, 1, 99)), [rows] * n) for n in (1, 2))
    for stage in ("route.gate", "experts", "attention"):
        assert two[stage] == one[stage] + one[stage]
    assert two["other.head"] == one["other.head"] == Work(2 * 2048 * 151_936, 2048 * 151_936 * 2, 153_984 * 2)
    assert two["other.embedding"] == Work(row_bytes=2 * 2048 * 2)


def test_without_attention_only_the_moe_layer_works():
    work = step_work(spec(QWEN.name, attention=False), QWEN, batch((0, 1, 9)), [[1] * 8 + [0] * 120])
    assert set(work) == {"route.gate", "route.select", "permute", "combine", "experts"}


def test_a_decode_attends_to_its_context_and_itself():
    work = step_work(spec(QWEN.name), QWEN, batch((0, 1, 99)), [[8] + [0] * 127])["attention"]
    parameters = 2048 * (32 + 8) * 128 + 32 * 128 * 2048 + 2 * 128
    assert work.weight_bytes == 2 * parameters
    assert work.flops == 2 * parameters + 4 * 32 * 128 * 100
    # keys and values of 100 tokens read and of one written, 2 · 4 · 128 values each; the residual stream
    assert work.row_bytes == 101 * 1024 * 2 + 4 * 2048 * 2


def test_a_chunk_of_a_prompt_attends_causally():
    work = step_work(spec(QWEN.name), QWEN, batch((3, 0, 10)), [[24] + [0] * 127])["attention"]
    parameters = work.weight_bytes // 2
    assert work.flops == 2 * 3 * parameters + 4 * 32 * 128 * (11 + 12 + 13)


def test_a_sliding_layer_sees_its_window_only():
    work = step_work(spec(GPT_OSS.name), GPT_OSS, batch((0, 1, 1000), (4, 0, 126)), [[20] + [0] * 31])
    full, sliding = work["attention.full"], work["attention.sliding"]
    pairs = 4 * 64 * 64
    # 1,001 and 127 + 128 + 129 + 130 tokens; in a window of 128: 128 and 127 + 128 + 128 + 128
    assert full.flops - sliding.flops == pairs * ((1001 - 128) + (514 - 511))


def test_latent_attention_absorbs_for_one_row_and_expands_for_a_chunk():
    rows = [[8] + [0] * 255]
    decode = step_work(spec(DEEPSEEK.name), DEEPSEEK, batch((0, 1, 9)), rows)["attention"]
    chunk = step_work(spec(DEEPSEEK.name), DEEPSEEK, batch((2, 0, 0)), rows)["attention"]
    parameters = decode.weight_bytes // 2
    assert decode.flops == 2 * parameters + 2 * 128 * (2 * 512 + 64) * 10
    assert chunk.flops == 4 * parameters + 2 * 128 * (128 + 64 + 128) * 3 + 2 * 128 * 512 * 256 * 2


def test_dense_layers_are_counted_where_the_model_has_them():
    work = step_work(spec(DEEPSEEK.name), DEEPSEEK, batch((0, 1, 9)), [[8] + [0] * 255])
    assert work["other.dense_ffn"] == expert_work(7168, 18_432, 2, [1])
    assert "other.dense_ffn" not in step_work(spec(QWEN.name), QWEN, batch((0, 1, 9)), [[8] + [0] * 127])


def test_a_step_that_yields_no_token_reads_no_head():
    chunk = batch((3, 0, 10))
    chunk.yields[:] = False
    assert step_work(spec(QWEN.name), QWEN, chunk, [[24] + [0] * 127])["other.head"] == Work()


def test_one_rank_of_one_has_all_the_work_around_the_layers():
    own = batch((0, 1, 99), (7, 0, 3))
    for model in (QWEN, DEEPSEEK, GPT_OSS):
        rows = [[1] * model.experts] * 2
        whole = step_work(spec(model.name, 2), model, own, rows)
        around = around_work(spec(model.name, 2), model, own)
        assert around == {stage: work for stage, work in whole.items() if stage.startswith(("attention", "other"))}


def test_two_ranks_divide_heads_and_vocabulary():
    work = around_work(spec(QWEN.name), QWEN, batch((0, 1, 99)), tp=2)
    # 16 query and 2 key-value heads of 128 on each; the norms of a query and a key head are whole
    parameters = 2048 * (16 + 2 * 2) * 128 + 16 * 128 * 2048 + 2 * 128
    assert work["attention"] == Work(
        flops=2 * parameters + 4 * 16 * 128 * 100,
        weight_bytes=2 * parameters,
        row_bytes=101 * (2 * 2 * 128) * 2 + 4 * 2048 * 2,  # its part of the cache, and the whole residual stream
    )
    assert work["other.head"] == Work(2 * 2048 * 75_968, 2048 * 75_968 * 2, (2048 + 75_968) * 2)
    assert work["other.embedding"] == Work(row_bytes=1.5 * 2048 * 2)


def test_ranks_beyond_the_key_value_heads_each_have_one():
    four, eight = (around_work(spec(QWEN.name), QWEN, batch((0, 1, 99)), tp)["attention"] for tp in (4, 8))
    assert four.row_bytes == eight.row_bytes == 101 * (2 * 1 * 128) * 2 + 4 * 2048 * 2
    assert four.weight_bytes - eight.weight_bytes == (2048 * 4 * 128 + 4 * 128 * 2048) * 2  # four query heads more


def test_a_latent_is_whole_on_every_rank():
    decode = around_work(spec(DEEPSEEK.name), DEEPSEEK, batch((0, 1, 9)), tp=4)
    query = 1536 * (7168 + 1) + 1536 * 32 * (128 + 64)
    parameters = query + 7168 * 576 + 512 + 512 * 32 * (128 + 128) + 32 * 128 * 7168
    assert decode["attention"] == Work(
        flops=2 * parameters + 2 * 32 * (2 * 512 + 64) * 10,
        weight_bytes=2 * parameters,
        row_bytes=(10 + 1) * 576 * 2 + 4 * 7168 * 2,
    )
    assert decode["other.dense_ffn"] == expert_work(7168, 4608, 2, [1])
    chunk = around_work(spec(DEEPSEEK.name), DEEPSEEK, batch((2, 0, 0)), tp=4)["attention"]
    assert chunk.flops == 4 * parameters + 2 * 32 * (128 + 64 + 128) * 3 + 2 * 32 * 512 * 256 * 2


def test_rows_that_fit_into_the_cache_need_no_bandwidth():
    limits = Limits(1e9, 1e12, cache_bytes=1000)
    assert limits.memory_us(Work(row_bytes=1000)) == 0
    assert limits.memory_us(Work(row_bytes=3000)) == 2
    assert limits.memory_us(Work(weight_bytes=500, row_bytes=3000)) == 2.5


def test_weights_that_all_stay_in_the_cache_need_none_either():
    work = Work(weight_bytes=2000)
    assert Limits(1e9, 1e12, cache_bytes=1000, resident_bytes=4000).memory_us(work) == 0
    assert Limits(1e9, 1e12, cache_bytes=1000, resident_bytes=4001).memory_us(work) == 2


@pytest.mark.parametrize(
    ("memory", "compute", "time", "label"),
    [
        (6, 0, 10, "memory"),
        (0, 6, 10, "compute"),
        (4, 5, 10, "compute"),
        (4.9, 0, 10, "overhead"),
        (0, 0, 1, "overhead"),
    ],
)
def test_the_label_names_the_larger_part_of_the_floor_or_neither(memory, compute, time, label):
    assert bound(memory, compute, time) == label


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(0, 29))
def test_one_more_row_never_lowers_a_floor(rows, place):
    more = list(rows)
    more[place % len(rows)] += 1
    limits = Limits(1e9, 1e10, cache_bytes=100)
    less, grown = (floor_us(expert_work(16, 8, 2, r), limits) for r in (rows, more))
    assert grown >= less


def test_quantized_weights_are_fewer_bytes_and_int8_multiplies_at_its_own_rate():
    """One row through the 3 · 256 · 128 weights of an expert, with 2 bytes of scale for each of 2 · 128 + 256 rows."""
    int8 = expert_work(256, 128, 2, [1, 0], "int8")
    assert (int8.flops, int8.int8_flops) == (2 * 3 * 256 * 128, 2 * 3 * 256 * 128)
    assert int8.weight_bytes == 3 * 256 * 128 + 2 * (2 * 128 + 256)
    assert Limits(1e9, 1e9, int8_per_s=2e9).compute_us(int8) == pytest.approx(int8.flops / 2e9 * 1e6)
    for lower in (None, 0.5e9):  # widened, they are multiplied at the rate of the rest
        assert Limits(1e9, 1e9, int8_per_s=lower).compute_us(int8) == pytest.approx(int8.flops / 1e9 * 1e6)
    int4 = expert_work(256, 128, 2, [1, 0], "int4")
    assert (int4.flops, int4.int8_flops) == (int8.flops, 0)
    assert int4.weight_bytes == 3 * 256 * 128 // 2 + 2 * 2 * (2 * 128 * 2 + 256)
    both = int8 + Work(flops=1e6)
    assert Limits(1e9, 1e9, int8_per_s=2e9).compute_us(both) == pytest.approx(1000 + int8.flops / 2e9 * 1e6)


def test_the_experts_of_a_step_are_read_as_they_are_stored():
    rows = [[1] * 8 + [0] * 120]
    quantized = Spec.model_validate(
        {"model": QWEN.name, "kernels": {"experts": "auto", "quantization": "int8", "attention": False}}
    )
    work = step_work(quantized, QWEN, batch((0, 1, 9)), rows)
    assert work["experts"] == expert_work(2048, 768, 2, rows[0], "int8")
    assert work["route.gate"].int8_flops == 0


def test_weights_that_were_just_read_count_beyond_the_cache_unless_all_stay_there():
    work = Work(row_bytes=50, reread_bytes=150)
    assert Limits(1e9, 1e9, cache_bytes=100).moved_bytes(work) == 100
    assert Limits(1e9, 1e9, cache_bytes=100, resident_bytes=400).moved_bytes(work) == 0
    assert Limits(1e9, 1e9, cache_bytes=100, resident_bytes=401).moved_bytes(work) == 100
    assert (work + work).reread_bytes == 300
