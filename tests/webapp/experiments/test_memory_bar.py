"""The memory of a device, part by part."""

from __future__ import annotations

import pytest

from bench_worker import capacity, models
from bench_worker.spec import Spec
from webapp.experiments.memory_bar import memory_bar


def deployment(name: str, device_bytes: int | None) -> capacity.Fit:
    return capacity.fit(Spec(model=name), device_bytes)


@pytest.mark.parametrize("name", models.presets())
def test_the_parts_are_all_of_it(name: str) -> None:
    fit = deployment(name, 80 * 10**9)
    bar = memory_bar(fit)
    assert sum(row.bytes for row in bar.rows) == bar.total_bytes == fit.total_bytes
    assert all(row.bytes for row in bar.rows)


def test_embedding_and_head_stand_together() -> None:
    rows = {row.name: row for row in memory_bar(deployment("olmoe-1b-7b", 10**9)).rows}
    assert rows["embeddings"].bytes == 2 * 50_304 * 2_048 * 2  # vocabulary · hidden · bfloat16, twice
    assert rows["embeddings"].share == pytest.approx(0.412, abs=0.001)
    assert "shared experts" not in rows


def test_quantized_experts_have_a_format_of_their_own() -> None:
    spec = Spec.model_validate({"model": "olmoe-1b-7b", "kernels": {"quantization": "fp8"}})
    formats = {row.name: row.format for row in memory_bar(capacity.fit(spec, None)).rows}
    assert (formats["experts"], formats["attention"], formats["KV cache"]) == ("fp8", "bfloat16", "bfloat16")


def test_a_device_of_unknown_memory_has_no_share() -> None:
    bar = memory_bar(deployment("olmoe-1b-7b", None))
    assert bar.share is None
    assert {row.share for row in bar.rows} == {None}
    assert "against" not in bar.label
