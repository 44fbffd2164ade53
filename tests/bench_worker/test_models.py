"""Presets and config files: the sizes that everything else is computed from."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from bench_worker import models
from bench_worker.hf_config import ARCHITECTURES
from bench_worker.models import GQA, MLA, GatedDeltaNet, Model

CONFIGS = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "configs"
needs_configs = pytest.mark.skipif(not CONFIGS.is_dir(), reason="the config files of ../shared/data aren't here")

# total, active, experts, attention, embedding: the parameters of each text model as transformers instantiates it
# without weights. glm-4.5-air with the head_dim 128 and the q, k, v biases of its config.json (published: 106B);
# transformers' defaults make a head_dim of 42 and no biases of it, 103.5B.
COUNTS = {
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704, 28_991_029_248, 905_981_952, 311_164_928),
    "qwen3.5-397b-a17b": (396_346_350_336, 17_349_040_896, 386_547_056_640, 6_883_511_040, 1_017_118_720),
    "qwen3.6-35b-a3b": (34_660_610_688, 3_454_988_928, 32_212_254_720, 1_284_188_800, 508_559_360),
    "deepseek-v3": (671_026_404_352, 37_552_282_624, 653_908_770_816, 11_413_547_008, 926_679_040),
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248, 45_097_156_608, 1_342_177_280, 131_072_000),
    "gpt-oss-120b": (116_829_156_672, 5_711_982_912, 114_701_598_720, 955_805_184, 579_133_440),
    "gpt-oss-20b": (20_914_757_184, 4_187_440_704, 19_116_933_120, 637_203_456, 579_133_440),
    "glm-4.5-air": (106_852_245_504, 13_424_123_904, 99_656_663_040, 5_017_047_040, 620_756_992),
    "olmoe-1b-7b": (6_919_161_856, 1_282_017_280, 6_442_450_944, 268_500_992, 103_022_592),
    "llama-4-scout": (107_769_861_120, 17_172_894_720, 96_636_764_160, 3_019_898_880, 1_034_485_760),
}

QWEN3 = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "intermediate_size": 96,
    "norm_topk_prob": True,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
GLM4 = {
    "model_type": "glm4_moe",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attention_bias": True,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "intermediate_size": 96,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
LLAMA4 = {
    "model_type": "llama4_text",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "intermediate_size": 32,
    "intermediate_size_mlp": 128,
    "attention_chunk_size": 256,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 32,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
OLMOE = MIXTRAL | {"model_type": "olmoe", "num_experts": 4, "norm_topk_prob": False}


@pytest.mark.parametrize("name", COUNTS)
def test_a_preset_has_exactly_the_parameters_of_its_model(name):
    p = models.load(name).parameters()
    assert (p.total, p.active, p.experts, p.attention, p.embedding) == COUNTS[name]
    assert p.lm_head == p.embedding
    assert sum(p.parts.values()) == p.total


def test_the_presets_are_the_ten_of_the_reference():
    assert list(models.presets()) == list(COUNTS)


@needs_configs
@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.json")), ids=lambda f: f.stem)
def test_a_config_file_describes_the_same_model_as_its_preset(file):
    model = models.load(str(file), allow_paths=True)
    preset = {"qwen3.5-35b-a3b": "qwen3.6-35b-a3b"}.get(file.stem, file.stem)  # same sizes, another training
    assert model.name == file.stem
    assert model.model_copy(update={"name": preset}) == models.load(preset)


def test_active_parameters_leave_out_the_experts_that_a_token_does_not_visit():
    p = models.from_config(QWEN3, "tiny").parameters()
    assert p.experts == 6 * 8 * 3 * 64 * 16
    assert p.total - p.active == 6 * (8 - 2) * 3 * 64 * 16


def test_parts_of_a_tiny_model_equal_hand_counts():
    p = models.from_config(QWEN3, "tiny").parameters()
    # q 64×128, k and v 64×64, out 128×64, and two norms over a head
    assert p.attention == 6 * (64 * 128 + 2 * 64 * 64 + 128 * 64 + 2 * 32)
    assert (p.router, p.norms, p.embedding, p.dense_ffn, p.shared_experts) == (6 * 8 * 64, 13 * 64, 64_000, 0, 0)


def test_tied_embeddings_count_once():
    p = models.from_config(QWEN3 | {"tie_word_embeddings": True}, "tiny").parameters()
    assert (p.embedding, p.lm_head) == (64_000, 0)


def test_gqa_weights_split_by_heads_and_replicate_key_value_heads_below_one_a_rank():
    gqa = GQA(kind="gqa", heads=8, kv_heads=2, head_dim=4)
    whole = 16 * (32 + 2 * 8 + 32)
    assert gqa.parameters(16) == whole
    assert gqa.parameters(16, tp=2) == whole // 2
    assert gqa.parameters(16, tp=4) == 16 * (8 + 2 * 4 + 8)  # one key-value head, not half a one
    assert [gqa.kv_values(tp) for tp in (1, 2, 4, 8)] == [16, 8, 8, 8]


def test_mla_keeps_its_latent_whole_on_every_rank():
    mla = MLA(kind="mla", heads=4, q_lora=8, kv_lora=6, nope=5, rope=3, v_dim=7)
    down = 16 * 8 + 8 + 16 * (6 + 3) + 6
    up = 8 * 4 * 8 + 6 * 4 * (5 + 7) + 4 * 7 * 16
    assert mla.parameters(16) == down + up
    assert mla.parameters(16, tp=4) == down + up // 4
    assert (mla.kv_values(), mla.kv_values(tp=4)) == (9, 9)


def test_mla_without_a_query_down_projection_projects_directly():
    mla = MLA(kind="mla", heads=4, kv_lora=6, nope=5, rope=3, v_dim=7)
    assert mla.parameters(16) == 16 * 32 + 16 * 9 + 6 + 6 * 48 + 28 * 16


def test_a_delta_net_holds_a_state_of_fixed_size():
    net = GatedDeltaNet(key_heads=2, key_dim=3, value_heads=4, value_dim=5, conv_kernel=4)
    mixed = 2 * 2 * 3 + 4 * 5
    assert net.state_values() == (4 * 3 * 5, mixed * 3)
    assert net.state_values(tp=2) == (2 * 3 * 5, mixed // 2 * 3)
    assert net.parameters(16) == 16 * (mixed + 20 + 4 + 4) + mixed * 4 + 4 + 4 + 5 + 20 * 16


def test_only_linear_attention_and_unbuilt_projections_are_not_measurable():
    reasons = {name: model.attention_not_measurable() for name, model in models.presets().items()}
    assert [name for name, reason in reasons.items() if reason] == ["qwen3.5-397b-a17b", "qwen3.6-35b-a3b"]
    assert reasons["qwen3.6-35b-a3b"] == (
        "qwen3.6-35b-a3b has 30 linear-attention layers of 40: its gated delta-net layers can't be measured yet"
    )


def test_attention_outside_what_the_kernels_compute_is_not_measurable():
    deepseek, qwen = models.load("deepseek-v3"), models.load("qwen3-30b-a3b")
    direct = deepseek.model_copy(update={"attention": deepseek.attention.model_copy(update={"q_lora": None})})
    gated = qwen.model_copy(update={"attention": qwen.attention.model_copy(update={"output_gate": True})})
    assert "without a down-projection" in direct.attention_not_measurable()
    assert "gates its attention's output" in gated.attention_not_measurable()


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("qwen3-30b-a3b", {"full": 48}),
        ("qwen3.5-397b-a17b", {"full": 15, "linear": 45}),
        ("gpt-oss-20b", {"full": 12, "sliding": 12}),
        ("llama-4-scout", {"full": 12, "sliding": 36}),
    ],
)
def test_layers_are_counted_by_kind_of_attention(name, layers):
    assert models.load(name).attention_layers == layers


def test_an_unknown_name_lists_the_presets_and_the_nearest():
    with pytest.raises(ValueError, match=r"^'olmoe-1b-8b' is not one of qwen3-30b-a3b, .*did you mean olmoe-1b-7b\?"):
        models.load("olmoe-1b-8b")


@pytest.mark.parametrize("path", ["config.json", "some/model", "some\\model", "/etc/passwd"])
def test_a_path_is_refused_where_paths_are_not_allowed(path):
    with pytest.raises(ValueError, match=r"is a file path; file paths are for the command line only$"):
        models.load(path)


def faulty(folder: Path, content: bytes) -> str:
    path = folder / "model.json"
    path.write_bytes(content)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the callers compare the whole sentence
        models.load(str(path), allow_paths=True)
    place, sentence = str(caught.value).split(": ", 1)
    assert place == repr(str(path))
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not valid JSON (line 1, column 1: Expecting value)"),
        (b"{\n 'a': 1}", "is not valid JSON (line 2, column 2: Expecting property name enclosed in double quotes)"),
        (b"\x89PNG\x00\xff", "is not text (byte 0 is not UTF-8)"),
        (b"[1, 2]", "holds no JSON object"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "is not valid JSON"),
        (b" " * 1_000_001, "has more than 1,000,000 bytes; a config.json has a few thousand"),
    ],
    ids=["empty", "not-json", "binary", "a-list", "deep", "huge-number", "too-big"],
)
def test_a_file_that_is_no_config_is_refused_in_one_sentence(tmp_path, content, sentence):
    assert faulty(tmp_path, content) == sentence


def test_a_missing_file_a_directory_and_a_pipe_are_refused(tmp_path):
    def sentence(path: Path) -> str:
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            models.load(str(path), allow_paths=True)
        return str(caught.value).rsplit(": ", 1)[1]

    os.mkfifo(tmp_path / "pipe.json")
    assert sentence(tmp_path / "none.json") == "there is no such file"
    assert sentence(tmp_path) == "is a directory; name the config.json in it"
    assert sentence(tmp_path / "pipe.json") == "is not a regular file"
    assert sentence(tmp_path / ("long" * 200 + ".json")) == "can't be read (File name too long)"


def test_a_file_without_an_architecture_names_the_fields_expected(tmp_path):
    sentence = faulty(tmp_path, b"{}")
    assert sentence.startswith("the config has no model_type")
    for field in ("num_experts", "num_experts_per_tok", "moe_intermediate_size", *ARCHITECTURES):
        assert field in sentence


def test_an_unknown_architecture_names_the_known_ones(tmp_path):
    sentence = faulty(tmp_path, json.dumps(QWEN3 | {"model_type": "llama"}).encode())
    assert sentence.startswith("the config's model_type 'llama' is not one of qwen3_moe, qwen3_5_moe, deepseek_v3")


def test_missing_fields_are_all_named(tmp_path):
    config = {name: value for name, value in QWEN3.items() if name not in ("num_experts", "norm_topk_prob")}
    assert faulty(tmp_path, json.dumps(config).encode()) == "the config lacks num_experts, norm_topk_prob"


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (QWEN3 | {"num_experts": "many"}, "the config's num_experts is 'many': input should be a valid integer"),
        (QWEN3 | {"hidden_size": 0}, "the config's hidden_size is 0: input should be greater than or equal to 1"),
        (
            QWEN3 | {"num_hidden_layers": 10**9},
            "the config's num_hidden_layers is 1000000000: input should be less than or equal to 10000",
        ),
        (QWEN3 | {"num_experts_per_tok": 9}, "the config is inconsistent: top_k 9 is above the 8 experts"),
        (
            QWEN3 | {"num_key_value_heads": 3},
            "the config is inconsistent: 4 query heads can't share 3 key-value heads evenly",
        ),
        (
            QWEN3 | {"decoder_sparse_step": 7},
            "the config is inconsistent: none of the 6 layers is a mixture of experts",
        ),
        (
            GLM4 | {"routed_scaling_factor": float("inf")},
            "the config's routed_scaling_factor is inf: input should be a finite number",
        ),
        (GLM4 | {"n_group": 3}, "the config is inconsistent: 3 groups don't divide 8 experts"),
        (GLM4 | {"n_group": 2, "topk_group": 3}, "the config is inconsistent: 3 of 2 groups can't be kept"),
        (
            GLM4 | {"n_group": 8, "topk_group": 1},
            "the config is inconsistent: the groups kept hold fewer than top_k 2 experts",
        ),
        (MIXTRAL | {"num_attention_heads": 6}, "the config lacks head_dim, and 6 heads don't divide 64"),
    ],
)
def test_a_wrong_value_is_named(config, sentence):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        models.from_config(config, "tiny")
    assert str(caught.value) == sentence


def test_layer_types_must_cover_every_layer():
    gpt_oss = MIXTRAL | {
        "model_type": "gpt_oss",
        "head_dim": 16,
        "sliding_window": 8,
        "layer_types": ["full_attention"] * 3,
    }
    with pytest.raises(ValueError, match=r"^the config's layer_types has 3 entries for 2 layers$"):
        models.from_config(gpt_oss, "tiny")


def test_llama4_experts_and_dense_layers_have_widths_of_their_own():
    model = models.from_config(LLAMA4 | {"interleave_moe_layer_step": 2}, "tiny")
    assert (model.expert_intermediate, model.shared_intermediate, model.dense_intermediate) == (32, 32, 128)
    assert (model.moe_layers, model.dense_layers) == (4, 4)
    assert models.from_config(LLAMA4 | {"moe_layers": [7]}, "tiny").moe_layers == 1


def test_llama4_layers_without_positions_attend_to_everything():
    assert models.from_config(LLAMA4, "tiny").attention_layers == {"full": 2, "sliding": 6}
    listed = models.from_config(LLAMA4 | {"no_rope_layers": [1, 0] * 4}, "tiny")
    assert listed.attention_layers == {"full": 4, "sliding": 4}
    assert models.from_config(LLAMA4 | {"attention_chunk_size": None}, "tiny").attention_layers == {"full": 8}


def test_qwen3_layers_between_sparse_steps_and_those_listed_are_dense():
    model = models.from_config(QWEN3 | {"decoder_sparse_step": 2, "mlp_only_layers": [1]}, "tiny")
    assert (model.moe_layers, model.dense_layers, model.dense_intermediate) == (2, 4, 96)


def test_a_sliding_window_counts_only_where_it_is_used():
    assert models.from_config(QWEN3 | {"sliding_window": 128}, "tiny").window is None
    used = models.from_config(QWEN3 | {"sliding_window": 128, "use_sliding_window": True}, "tiny")
    assert (used.window, used.sliding_layers) == (128, 6)
    assert models.from_config(MIXTRAL | {"sliding_window": 128}, "tiny").sliding_layers == 2


def test_glm_counts_biases_on_query_key_and_value_only():
    plain, biased = (models.from_config(GLM4 | {"attention_bias": b}, "tiny").parameters() for b in (False, True))
    assert biased.attention - plain.attention == 4 * (6 + 2 + 2) * 16


def test_glm_query_and_key_norms_follow_the_config():
    plain, normed = (models.from_config(GLM4 | {"use_qk_norm": n}, "tiny").parameters() for n in (False, True))
    assert normed.attention - plain.attention == 4 * 2 * 16


def test_olmoe_renormalizes_as_its_config_says_and_takes_head_dim_from_the_hidden_size():
    for renormalize in (False, True):
        assert models.from_config(OLMOE | {"norm_topk_prob": renormalize}, "tiny").renormalize is renormalize
    attention = models.from_config(OLMOE, "tiny").attention
    assert isinstance(attention, GQA)
    assert (attention.head_dim, attention.qk_norm) == (16, "width")


def test_config_json_is_named_after_its_folder(tmp_path):
    (tmp_path / "tiny-moe").mkdir()
    path = tmp_path / "tiny-moe" / "config.json"
    path.write_text(json.dumps(QWEN3))
    assert models.load(str(path), allow_paths=True).name == "tiny-moe"


@pytest.mark.parametrize(
    "change",
    [{"sliding_layers": 1}, {"window": 8}, {"linear_layers": 1}, {"dense_layers": 1}, {"dense_intermediate": 8}],
    ids=str,
)
def test_sizes_that_belong_together_come_together(change):
    with pytest.raises(ValidationError, match="go together"):
        Model(**models.load("olmoe-1b-7b").model_dump() | change)


def test_more_special_layers_than_layers_are_refused():
    with pytest.raises(ValidationError, match="more than the 16 layers"):
        Model(**models.load("olmoe-1b-7b").model_dump() | {"sliding_layers": 17, "window": 8})


def test_models_and_capacity_do_not_import_torch():
    code = "import sys, bench_worker.capacity; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
