"""The second yardstick of the benchmark of kernels, on a small model."""

from __future__ import annotations

import pytest

from bench_worker import calibrate, models
from bench_worker.kernel_report import Row
from tools.bench import kernels


def test_the_rate_of_auto_stands_beside_dense_products_of_as_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """512 tokens on 8 of 128 experts are 32 rows each; 4,096 rows of 6 · 2,048 · 768 FLOPs in 50 ms are 773 GFLOP/s."""
    rates = {kernels.DENSE_WEIGHTS: 700e9, 1: 900e9}
    asked: list[int] = []

    def dense_rate(model: models.Model, rows: int, weights: int) -> float:
        asked.append(rows)
        return rates[weights]

    monkeypatch.setattr(kernels, "dense_rate", dense_rate)
    auto = Row(backend="auto", fusion="whole", tokens=512, experts_us=50_000.0, available=True)
    assert kernels._beside_dense(auto, models.presets()["qwen3-30b-a3b"]) == (
        "512 tokens, 32 rows an expert: auto 773 GFLOP/s, 110% of dense products as tall over rotating weights "
        "(700; with the weight in cache 900)"
    )
    assert asked == [32, 32]


def test_a_dense_product_has_the_shapes_of_an_expert_and_its_weights_rotate(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def matrix_kernels(device: object, dtypes: list[str], shapes: list[tuple[int, int, int]], weights: int) -> list:
        seen.append((shapes, weights))
        turns: list[int] = []
        return [calibrate.Kernel("bfloat16", "linear", turns.append, 1.0, [])]

    def measure(made: list[calibrate.Kernel], device: object, rounds: int, seconds: float) -> None:
        made[0].seconds += [0.5, 0.25, 1.0]

    monkeypatch.setattr(calibrate, "matrix_kernels", matrix_kernels)
    monkeypatch.setattr(calibrate, "measure", measure)
    model = models.presets()["qwen3-30b-a3b"]  # hidden 2,048, experts of 768
    assert kernels.dense_rate(model, rows=4, weights=3) == 4 * 2 * 3 * 2048 * 768  # two products of half a second
    assert seen == [([(4, 2048, 1536)], 3), ([(4, 768, 2048)], 3)]
