"""A model small enough to run in a test, as a local ``config.json``. Hypothesis gets no deadline: a busy machine is no
failure. Ceilings are made up: measuring them would take longer than the tests."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import settings

from bench_worker import ceilings, environment
from bench_worker.ceilings import Ceiling, Ceilings

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


@pytest.fixture(autouse=True, scope="session")
def kept_ceilings(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ceilings of this machine in a cache of the tests' own, which processes that they start find too."""
    os.environ["MOESCOPE_CACHE"] = str(tmp_path_factory.mktemp("cache"))

    def ceiling(value: float, unit: str) -> Ceiling:
        return Ceiling(value=value, unit=unit, kernel="made up", median=value, lowest=value, samples=1)

    fingerprint = environment.device_fingerprint(environment.machine())
    for threads in range(1, 9):
        made = Ceilings(
            device="cpu",
            threads=threads,
            read=ceiling(50.0, "GB/s"),
            copy_rate=ceiling(50.0, "GB/s"),
            matrix={dtype: ceiling(1000.0, "GFLOP/s") for dtype in ("float32", "bfloat16", "float16")},
            cache_bytes=2**25,
            measured_at=datetime(2026, 1, 1, tzinfo=UTC),
            seconds=1.0,
            warnings=[],
        )
        ceilings.keep(fingerprint, made)
