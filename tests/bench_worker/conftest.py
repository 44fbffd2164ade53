"""A model small enough to run in a test, as a local ``config.json``. Hypothesis gets no deadline: a busy machine is no
failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("moescope", deadline=None)
settings.load_profile("moescope")

TINY = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "moe_intermediate_size": 32,
    "intermediate_size": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "max_position_embeddings": 4096,
    "vocab_size": 256,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.json"
    path.write_text(json.dumps(TINY))
    return path


@pytest.fixture(scope="session")
def wide_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with experts that int4 divides into whole groups."""
    path = tmp_path_factory.mktemp("models") / "wide.json"
    path.write_text(json.dumps(TINY | {"hidden_size": 256, "moe_intermediate_size": 128}))
    return path


@pytest.fixture(autouse=True, scope="session")
def not_measured(kept_ceilings: Path) -> None:
    """Ceilings are kept for every test here."""
