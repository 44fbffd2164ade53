"""Memory of the deployment and of the measurement, against figures worked out by hand."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker import models
from bench_worker.capacity import (
    PACKED_COPIES,
    PROBE_BYTES,
    PROCESS_BYTES,
    TRACE_TOKENS,
    Fit,
    beyond_context,
    fit,
    fit_measurement,
    longest_context,
    needs,
)
from bench_worker.kept_kernels import kept_kernels_bytes
from bench_worker.spec import Spec
from bench_worker.strategies import selection_bytes

H200 = 141_000_000_000


def spec(
    model: str = "qwen3-30b-a3b",
    *,
    layers: int = 1,
    top_k: int | None = None,
    capacity_factor: float | None = None,
    **groups: dict,
) -> Spec:
    workload = {"prompt_tokens": 2048, "output_tokens": 512} | groups.pop("workload", {})
    return Spec.model_validate(
        {
            "model": model,
            "layers": layers,
            "routing": {"top_k": top_k, "capacity_factor": capacity_factor},
            "workload": workload,
            **groups,
        }
    )


def measured(spec: Spec) -> Fit:
    return fit_measurement(spec, H200, tokens_per_sequence=3000)


def layout(**sizes: int) -> dict:
    return {"layout": sizes}


@pytest.mark.parametrize("name", models.presets())
def test_on_one_rank_weights_are_every_parameter_times_its_bytes(name):
    parameters = models.load(name).parameters()
    f = fit(spec(name), H200)
    assert f.parts == {part: 2 * count for part, count in parameters.parts.items()}
    assert f.weights_bytes == 2 * parameters.total


def test_total_not_active_parameters_decide():
    assert fit(spec(), H200).weights_bytes == 61_064_245_248  # 30.5B × 2 bytes
    assert fit(spec(kernels={"dtype": "float32"}), H200).weights_bytes == 2 * 61_064_245_248


@pytest.mark.parametrize(
    ("name", "tp", "per_token"),
    [
        ("qwen3-30b-a3b", 1, 2 * 48 * 4 * 128 * 2),
        ("qwen3-30b-a3b", 2, 2 * 48 * 2 * 128 * 2),
        ("qwen3-30b-a3b", 8, 2 * 48 * 1 * 128 * 2),  # 4 key-value heads replicate over 8 ranks
        ("deepseek-v3", 1, 61 * (512 + 64) * 2),
        ("deepseek-v3", 8, 61 * (512 + 64) * 2),  # the latent isn't divided
        ("qwen3.5-397b-a17b", 1, 2 * 15 * 2 * 256 * 2),  # every fourth of 60 layers
        ("glm-4.5-air", 1, 2 * 46 * 8 * 128 * 2),
    ],
)
def test_kv_bytes_a_token(name, tp, per_token):
    assert fit(spec(name, parallel=layout(tp=tp)), H200).kv_bytes_per_token == per_token


def test_kv_cache_holds_every_request_in_flight():
    f = fit(spec(workload={"concurrency": 16}), H200)
    assert (f.sequences, f.tokens_per_sequence) == (16, 2560)
    assert f.kv_bytes == 16 * 2560 * 98_304


def test_sliding_layers_stop_growing_at_their_window():
    f = fit(spec("gpt-oss-20b", workload={"concurrency": 1}), H200)
    assert f.kv_bytes == 2 * 8 * 64 * 2 * (12 * 2560 + 12 * 128)
    short = fit(spec("gpt-oss-20b", workload={"concurrency": 1}), H200, tokens_per_sequence=100)
    assert short.kv_bytes == 100 * short.kv_bytes_per_token


def test_linear_attention_holds_a_state_of_one_size_for_any_length():
    short, long = (fit(spec("qwen3.6-35b-a3b"), H200, tokens_per_sequence=n) for n in (1, 1001))
    recurrent, convolution = 32 * 128 * 128 * 4, (2 * 16 * 128 + 32 * 128) * 3 * 2
    assert short.state_bytes_per_sequence == long.state_bytes_per_sequence == 30 * (recurrent + convolution)
    assert short.kv_bytes == 8 * (30 * (recurrent + convolution) + short.kv_bytes_per_token)
    assert long.kv_bytes - short.kv_bytes == 8 * 1000 * short.kv_bytes_per_token


def test_buffers_hold_dispatched_and_combined_rows_and_two_intermediates():
    rows = 2048 * 8
    assert fit(spec(), H200).buffers_bytes == (2 * rows * 2048 + rows * 2 * 768 + rows * 768) * 2
    assert fit(spec(top_k=4), H200).buffers_bytes == fit(spec(), H200).buffers_bytes // 2


@pytest.mark.parametrize(
    ("routing", "rows"),
    [
        ({"strategy": "dynamic"}, 2048 * 16),  # up to 2k experts a token
        ({"strategy": "dynamic", "max_experts": 3}, 2048 * 3),
        ({"strategy": "expert_choice"}, 2048 * 8),
        ({"strategy": "soft", "slots_per_expert": 5}, 128 * 5),
    ],
)
def test_buffers_hold_the_rows_of_the_strategy(routing, rows):
    one = Spec.model_validate({"model": "qwen3-30b-a3b", "routing": routing})
    selection = selection_bytes(routing["strategy"], routing, 2048, 128)
    assert fit(one, H200).buffers_bytes == (2 * rows * 2048 + rows * 2 * 768 + rows * 768) * 2 + selection


def test_the_worst_rank_of_a_layout():
    whole, f = fit(spec(), H200), fit(spec(parallel=layout(tp=2, dp=4)), H200)
    assert f.parts["experts"] == whole.parts["experts"] // 8
    assert f.parts["embedding"] == whole.parts["embedding"] // 2
    assert f.parts["router"] == whole.parts["router"]
    norms = 48 * 2 * 128 * 2  # of queries and keys, on every rank
    assert f.parts["attention"] - norms == (whole.parts["attention"] - norms) // 2
    assert f.sequences == 2  # 8 in flight over 4 groups


def test_dense_and_shared_layers_divide_by_tp():
    whole, f = fit(spec("deepseek-v3"), H200), fit(spec("deepseek-v3", parallel=layout(tp=8)), H200)
    assert f.parts["dense_ffn"] == whole.parts["dense_ffn"] // 8
    assert f.parts["shared_experts"] == whole.parts["shared_experts"] // 8
    # down-projections and norms of MLA replicate: more than an eighth remains
    replicated = 61 * (7168 * 1536 + 1536 + 7168 * 576 + 512) * 2
    assert f.parts["attention"] - replicated == (whole.parts["attention"] - replicated) // 8


def test_redundant_experts_squeeze_the_kv_cache():
    plain, copies = (fit(spec(parallel={"redundant_experts": n}), H200) for n in (0, 8))
    assert copies.parts["experts"] - plain.parts["experts"] == 48 * 8 * 3 * 2048 * 768 * 2
    assert copies.max_concurrency < plain.max_concurrency


def test_experts_that_do_not_divide_count_on_the_fullest_rank():
    f = fit(spec("olmoe-1b-7b", parallel=layout(dp=3)), H200)
    assert f.parts["experts"] == 16 * 22 * 3 * 2048 * 1024 * 2  # 64 over 3 ranks: 22, 21, 21


def test_room_for_sequences_is_what_weights_and_buffers_leave():
    f = fit(spec(), H200)
    per_sequence = 2560 * 98_304
    assert f.max_concurrency == (H200 - f.weights_bytes - f.buffers_bytes) // per_sequence
    assert fit(spec(parallel=layout(dp=2)), H200).max_concurrency % 2 == 0
    assert fit(spec(), 24_000_000_000).max_concurrency == 0


def test_it_fits_up_to_the_last_byte():
    total = fit(spec(), H200).total_bytes
    assert fit(spec(), total).fits is True
    assert fit(spec(), total - 1).fits is False


def test_an_unknown_device_is_neither_a_yes_nor_a_no():
    f = fit(spec(), None)
    assert (f.device_bytes, f.fits, f.max_concurrency) == (None, None, None)
    assert needs(f) == "needs 63.3 GB and the memory of the device isn't known"


@pytest.mark.parametrize(
    ("workload", "tokens"),
    [
        ({}, TRACE_TOKENS),
        ({"prompt_tokens": 2048}, 2048 + TRACE_TOKENS),
        ({"output_tokens": 100}, 100 + TRACE_TOKENS),
        ({"prompt_tokens": 40_000}, 40_960),  # the model's context
        ({"prompt_tokens": 1000, "output_tokens": 24}, 1024),
    ],
)
def test_lengths_that_the_trace_decides_count_as_a_usual_one(workload, tokens):
    s = Spec.model_validate({"model": "qwen3-30b-a3b", "workload": workload})
    assert fit(s, H200).tokens_per_sequence == tokens
    assert fit(s, H200, tokens_per_sequence=77).tokens_per_sequence == 77


def test_a_measurement_of_the_moe_layer_alone_holds_its_executed_layers():
    one = spec(layers=2, kernels={"attention": False})
    f = fit_measurement(one, H200, tokens_per_sequence=3000)
    assert f.parts == {
        "experts": 2 * 128 * 3 * 2048 * 768 * 2,
        "shared_experts": 0,
        "router": 2 * 128 * 2048 * 2,
        "process": PROCESS_BYTES + PROBE_BYTES,
        "kernels": kept_kernels_bytes(one, models.load(one.model), 2048, steps=47, tokens_per_sequence=3000),
    }  # 32 requests of 3,000 tokens at most are 47 steps of 2,048
    assert f.weights_bytes == f.parts["experts"] + f.parts["router"]
    rows = 2048 * 8
    activations = 2048 * 2048 + 2 * rows * 2048 + rows * 2 * 768 + rows * 768
    assert f.buffers_bytes == 2 * activations + 3 * 2048 * 768 * 8
    assert (f.kv_bytes, f.kv_bytes_per_token) == (0, 0)
    assert f.max_concurrency == 8  # as many as asked for


def test_a_measurement_holds_the_steps_that_its_requests_can_fill():
    """Two requests of 100 and 200 tokens make no step of 2,048; the check against the reference takes 256."""
    rows = {256: 2048, 400: 3200}
    for tokens_per_sequence, tokens in ((100, 256), (200, 400)):
        one = spec(workload={"concurrency": 2}, kernels={"attention": False})
        activations = tokens * 2048 + rows[tokens] * (2 * 2048 + 3 * 768)
        f = fit_measurement(one, H200, tokens_per_sequence=tokens_per_sequence)
        assert f.buffers_bytes == 2 * activations + 3 * 2048 * 768 * 8


def test_the_prompts_decide_how_many_kernels_are_kept():
    few, many = (fit_measurement(spec(), H200, tokens_per_sequence=3000, prompt_tokens=n) for n in (2048, 200_000))
    assert few.parts["kernels"] < many.parts["kernels"]
    assert few.parts | {"kernels": 0} == many.parts | {"kernels": 0}


def test_a_gpu_keeps_no_kernels_of_onednn_and_is_not_probed():
    here, there = (fit_measurement(spec(), H200, tokens_per_sequence=3000, on_gpu=on_gpu) for on_gpu in (False, True))
    assert there.parts == here.parts | {"kernels": 0, "process": PROCESS_BYTES}
    assert here.total_bytes - there.total_bytes == here.parts["kernels"] + PROBE_BYTES > PROBE_BYTES


def test_a_measurement_with_attention_holds_caches_embedding_and_head():
    alone = fit_measurement(spec(kernels={"attention": False}), H200, tokens_per_sequence=3000)
    f = fit_measurement(spec(), H200, tokens_per_sequence=3000)
    assert f.parts["attention"] == (2048 * (4096 + 2 * 512) + 4096 * 2048 + 2 * 128) * 2
    assert f.parts["embedding"] == f.parts["lm_head"] == 151_936 * 2048 * 2
    assert f.parts["norms"] == 3 * 2048 * 2
    assert f.kv_bytes == 8 * 3000 * 2 * 4 * 128 * 2
    assert f.buffers_bytes - alone.buffers_bytes == 8 * 151_936 * 2  # logits


@pytest.mark.parametrize("mode", ["virtual", "distributed"])
def test_a_measurement_divides_attention_among_the_ranks_of_a_group(mode):
    """Query heads 32, key-value heads 4: a member of eight has 4 and 1 of them, so two of them hold each of the latter.
    In one process every member's part is held once, whatever the groups; eight processes hold one part each."""

    def fitted(tp, dp):
        several = spec(parallel=layout(tp=tp, dp=dp) | {"mode": mode})
        return fit_measurement(several, H200, tokens_per_sequence=3000)

    whole, f = fit_measurement(spec(), H200, tokens_per_sequence=3000), fitted(tp=8, dp=1)
    assert f.parts["attention"] == 8 * (2048 * (4 + 2 * 1) * 128 + 4 * 128 * 2048 + 2 * 128) * 2
    assert f.kv_bytes == 2 * whole.kv_bytes
    two = fitted(tp=2, dp=2)
    each = (2048 * (16 + 2 * 2) * 128 + 16 * 128 * 2048 + 2 * 128) * 2
    assert two.parts["attention"] == (2 if mode == "virtual" else 4) * each


def test_a_measurement_holds_one_attention_of_each_kind_and_one_dense_ffn():
    oss = fit_measurement(spec("gpt-oss-20b", layers=3), H200, tokens_per_sequence=3000)
    assert oss.parts["attention"] == 3 * 2 * models.load("gpt-oss-20b").attention_parameters("full") * 2
    assert oss.kv_bytes == 8 * 3000 * 3 * 2 * (2 * 8 * 64) * 2
    deepseek = fit_measurement(spec("deepseek-v3"), H200, tokens_per_sequence=3000)
    assert deepseek.parts["dense_ffn"] == 3 * 7168 * 18432 * 2
    assert deepseek.parts["shared_experts"] == 3 * 7168 * 2048 * 2


def test_mla_measurement_has_room_to_expand_one_sequence():
    short, long = (fit_measurement(spec("deepseek-v3"), H200, tokens_per_sequence=n) for n in (1000, 2000))
    assert long.buffers_bytes - short.buffers_bytes == 1000 * 128 * (128 + 64 + 128) * 2


def test_the_sentence_gives_both_figures():
    f = fit(spec(), 24_000_000_000)
    assert needs(f) == "needs 63.3 GB and the device has 24.0 GB free"


def test_the_sentence_never_shows_two_equal_figures_for_a_refusal():
    total = fit(spec(), H200).total_bytes
    sentence = needs(fit(spec(), total - 2_000_000))
    need, free = (word for word in sentence.split() if word[0].isdigit())
    assert need != free
    assert sentence.startswith("needs 63.")


@pytest.mark.parametrize(
    ("quantization", "expert_bytes"),
    [
        ("none", 2 * 3 * 2048 * 768),
        ("fp8", 3 * 2048 * 768 + 3 * 16 * 6 * 4),  # a float32 for each block of 128 × 128
        ("int8", 3 * 2048 * 768 + (768 + 768 + 2048) * 2),  # a scale for each row of gate, up and down
        ("int4", 3 * 2048 * 768 // 2 + (2 * 768 * 16 + 2048 * 6) * 2 * 2),  # a scale and a zero point for each 128
    ],
)
def test_quantization_is_that_of_the_experts_with_their_scales(quantization, expert_bytes):
    plain, f = fit(spec(), H200), fit(spec(kernels={"quantization": quantization}), H200)
    assert f.parts == plain.parts | {"experts": 48 * 128 * expert_bytes}
    assert (f.kv_bytes, f.buffers_bytes) == (plain.kv_bytes, plain.buffers_bytes)
    measured = fit_measurement(spec(kernels={"quantization": quantization}), H200, tokens_per_sequence=100)
    assert measured.parts["experts"] == 128 * expert_bytes


def test_biases_of_experts_keep_their_dtype():
    f = fit(spec("gpt-oss-20b", kernels={"quantization": "int8"}), H200)
    assert f.parts["experts"] == 24 * 32 * (3 * 2880 * 2880 + 3 * 2880 * 2 + 3 * 2880 * 2)


def test_every_part_names_its_number_format():
    f = fit(spec("deepseek-v3", kernels={"quantization": "fp8"}), H200)
    assert set(f.formats) == set(f.parts) | {"kv_cache"}
    assert {part for part, name in f.formats.items() if name != "bfloat16"} == {"experts"}
    assert f.formats["experts"] == "fp8"
    assert fit(spec(kernels={"dtype": "float32"}), H200).formats["kv_cache"] == "float32"


def test_a_bounded_kv_cache_takes_no_more_than_its_tokens():
    assert fit(spec(workload={"kv_tokens": 10_000}), H200).kv_bytes == 10_000 * 98_304
    assert fit(spec(workload={"kv_tokens": 10**6}), H200).kv_bytes == 8 * 2560 * 98_304
    linear = fit(spec("qwen3.6-35b-a3b", workload={"kv_tokens": 10_000}), H200)
    assert linear.kv_bytes == 10_000 * linear.kv_bytes_per_token + 8 * linear.state_bytes_per_sequence
    measured = fit_measurement(spec(workload={"kv_tokens": 10_000}), H200, tokens_per_sequence=2560)
    assert measured.kv_bytes == 8 * 2560 * 2 * 4 * 128 * 2  # slots of one length, whatever the bound


@pytest.mark.parametrize(
    ("model", "device", "tokens"),
    [
        # (80 GB − weights − buffers) / 8 sequences / 98,304 bytes a token
        ("qwen3-30b-a3b", 80 * 10**9, (80 * 10**9 - 61_064_245_248 - 209_715_200) // 8 // 98_304),
        ("qwen3-30b-a3b", 61 * 10**9, 0),
        ("olmoe-1b-7b", H200, 4096),  # the model's context
    ],
)
def test_the_longest_context_is_what_the_memory_leaves_within_the_models(model, device, tokens):
    assert longest_context(spec(model), device) == tokens


@pytest.mark.parametrize("name", models.presets())
def test_the_longest_context_fits_and_one_more_token_does_not(name):
    device = fit(spec(name), None).total_bytes
    longest = longest_context(spec(name), device)
    assert fit(spec(name), device, tokens_per_sequence=longest).fits
    if longest < models.load(name).max_context:
        assert not fit(spec(name), device, tokens_per_sequence=longest + 1).fits


def test_a_length_beyond_the_models_context_is_warned_of():
    olmoe = models.load("olmoe-1b-7b")
    assert beyond_context(olmoe, 4096) is None
    assert beyond_context(olmoe, 4097) == "The longest request has 4,097 tokens; olmoe-1b-7b was made for 4,096."


# Total parameters of the config files' models, as transformers instantiates them without weights.
CONFIG_TOTALS = {
    "qwen3-30b-a3b": 30_532_122_624, "qwen3.5-397b-a17b": 396_346_350_336, "qwen3.5-35b-a3b": 34_660_610_688,
    "deepseek-v3": 671_026_404_352, "mixtral-8x7b": 46_702_792_704, "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184, "llama-4-scout": 107_769_861_120,
}  # fmt: skip
CONFIGS = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "configs"


@pytest.mark.skipif(not CONFIGS.is_dir(), reason="the config files of ../shared/data aren't here")
@pytest.mark.parametrize("name", CONFIG_TOTALS)
def test_a_config_file_needs_the_bytes_of_its_exact_parameters(name):
    assert fit(spec(str(CONFIGS / f"{name}.json")), H200).weights_bytes == 2 * CONFIG_TOTALS[name]


def test_the_weights_of_qwen3_30b_are_61_gb():
    weights = fit(spec(), H200).weights_bytes
    assert weights / 1e9 == pytest.approx(61.1, abs=0.2)
    assert weights / 2**30 == pytest.approx(56.9, abs=0.2)


@given(
    name=st.sampled_from(list(models.presets())),
    tp=st.sampled_from([1, 2, 4, 8]),
    dp=st.integers(1, 8),
    concurrency=st.integers(1, 64),
    tokens=st.integers(1, 8192),
    device=st.integers(0, 10**13),
)
def test_totals_add_up_and_ranks_hold_at_least_their_share(name, tp, dp, concurrency, tokens, device):
    s = spec(name, parallel=layout(tp=tp, dp=dp), workload={"concurrency": concurrency})
    f = fit(s, device, tokens_per_sequence=tokens)
    assert f.total_bytes == sum(f.parts.values()) + f.kv_bytes + f.buffers_bytes
    assert f.fits == (f.total_bytes <= device)
    assert f.weights_bytes * tp * dp >= 2 * models.load(name).parameters().total
    assert f.fits == (f.max_concurrency >= f.sequences * dp)
    assert Fit.model_validate_json(f.model_dump_json()) == f


def test_zentorch_holds_its_packed_copies_beside_the_weights():
    plain = measured(spec())
    packed = measured(spec(kernels={"experts": "zentorch", "fusion": "whole"}))
    experts = 128 * 3 * 2048 * 768 * 2
    assert packed.parts["packed"] == int(PACKED_COPIES * experts)
    assert packed.total_bytes - plain.total_bytes == packed.parts["packed"] - (
        plain.parts["kernels"] - packed.parts["kernels"]  # the row counts of a GEMM an expert
    )
    assert packed.weights_bytes == plain.weights_bytes  # what a step reads has not grown


@pytest.mark.parametrize("backend", ["padded", "deepspeed_layer"])
@pytest.mark.parametrize(
    ("load", "capacity_factor", "fullest"),
    [
        ({"profile": "zipf"}, None, 2048),  # every token may pick the same expert
        ({"profile": "uniform"}, None, 196),  # 128 rows on average, and 6 · sqrt(128) more
        ({"profile": "zipf"}, 1.25, 160),
    ],
)
def test_padded_rows_are_counted_with_the_fullest_expert(backend, load, capacity_factor, fullest):
    width = (2 * 2048 + 3 * 768) * 2
    one, other = (
        measured(spec(capacity_factor=capacity_factor, load=load, kernels={"experts": name}))
        for name in ("deepspeed", backend)
    )
    assert other.buffers_bytes - one.buffers_bytes == (128 * fullest - 2048 * 8) * width


def test_ranks_in_one_process_share_their_experts_or_hold_copies():
    def experts(**parallel):
        several = {"mode": "virtual", "layout": {"dp": 4}} | parallel
        spec = Spec.model_validate({"model": "olmoe-1b-7b", "kernels": {"attention": False}, "parallel": several})
        fit = fit_measurement(spec, None, tokens_per_sequence=64)
        return fit.parts["experts"] / (3 * 2048 * 1024 * 2), fit.parts["process"]

    one = PROCESS_BYTES + PROBE_BYTES
    assert experts(mode="single", layout={}) == (64, one)
    assert experts() == (64, one)
    assert experts(placement="round_robin") == (64 + 64, one)
    assert experts(placement="eplb", redundant_experts=8) == (64 + 72, one)
    assert experts(mode="distributed", redundant_experts=8) == (72, 4 * PROCESS_BYTES)  # ranks are not probed
    assert experts(count_only=True) == (0, PROCESS_BYTES)


@pytest.mark.parametrize("backend", ["deepspeed", "zentorch"])
def test_counting_alone_neither_packs_weights_nor_compiles_kernels(backend):
    base = {
        "model": "olmoe-1b-7b", "kernels": {"attention": False, "experts": backend},
        "parallel": {"mode": "virtual", "layout": {"dp": 8}, "count_only": True},
    }  # fmt: skip
    parts = fit_measurement(Spec.model_validate(base), None, tokens_per_sequence=64).parts
    assert parts["experts"] == parts["kernels"] == parts.get("packed", 0) == 0
