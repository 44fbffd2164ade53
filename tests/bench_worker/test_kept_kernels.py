"""How many kernels a measurement makes oneDNN keep, against row counts that were drawn."""

import numpy as np
import pytest

from bench_worker import models
from bench_worker.kept_kernels import KERNEL_BYTES, different_row_counts, kept_kernels_bytes
from bench_worker.spec import Spec
from bench_worker.workload.plackett_luce import inclusion

OLMOE = models.load("olmoe-1b-7b")


def kept(model=OLMOE, tokens=2048, steps=1, tokens_per_sequence=100, **parts):
    spec = Spec.model_validate({"model": model.name, **parts})
    return kept_kernels_bytes(spec, model, tokens, steps=steps, tokens_per_sequence=tokens_per_sequence) / KERNEL_BYTES


@pytest.mark.parametrize("skew", [0.0, 1.0])
@pytest.mark.parametrize(("tokens", "draws"), [(256, 1), (2048, 1), (2048, 12)])
def test_different_row_counts_are_as_many_as_drawn_ones(tokens, draws, skew):
    """Top-8 of 64 by weights rank^−skew with Gumbel noise; the mean of several trials, each of ``draws`` steps."""
    rng, log_weight = np.random.default_rng(0), -skew * np.log(np.arange(1, 65))
    found = []
    for _ in range(6):
        counts = set()
        for _ in range(draws):
            chosen = np.argpartition(log_weight + rng.gumbel(size=(tokens, 64)), -8, axis=1)[:, -8:]
            counts |= set(np.bincount(chosen.ravel(), minlength=64).tolist()) - {0}
        found.append(len(counts))
    expected = different_row_counts(inclusion(np.exp(log_weight), 8), tokens, draws)
    assert expected == pytest.approx(np.mean(found), rel=0.1)


def test_no_more_row_counts_are_different_than_there_are_tokens():
    assert different_row_counts(np.full(64, 0.125), 16, 10**6) <= 16
    assert different_row_counts(np.ones(1), 16, 5) == pytest.approx(1, abs=0.5)


def test_only_bfloat16_keeps_kernels():
    assert kept() > 0
    assert kept(kernels={"dtype": "float32"}) == kept(kernels={"dtype": "float16"}) == 0


def test_backends_that_do_not_compute_expert_by_expert_keep_none_for_rows():
    assert kept(kernels={"experts": "loop"}) == kept()
    none_for_rows = kept(kernels={"experts": "padded", "attention": False})
    assert none_for_rows == pytest.approx(10)
    quantized = {"experts": "loop", "attention": False, "quantization": "int8"}  # by kernels that are compiled already
    assert kept(kernels=quantized) == none_for_rows


def test_an_even_load_keeps_one_for_each_size_of_a_step():
    """At 8 in flight: sizes 1 to 8 and two more, each with two products of the experts and the gate's."""
    alone = {"attention": False}
    for strategy in ("expert_choice", "balanced", "soft"):
        assert kept(routing={"strategy": strategy}, kernels=alone) == pytest.approx(10 * 3)
    assert kept(kernels=alone) > kept(load={"profile": "uniform"}, kernels=alone) > 10 * 3


def test_attention_keeps_two_for_each_page_of_a_decoding_requests_cache():
    fixed = kept(workload={"prompt_tokens": 500, "output_tokens": 32})  # 32 tokens cross two pages
    traced = kept(tokens_per_sequence=532)
    assert traced - fixed == pytest.approx(2 * (34 - 2))
    without = kept(kernels={"attention": False}, workload={"prompt_tokens": 500, "output_tokens": 32})
    assert fixed - without == pytest.approx(3 * 10 + 2 * 3)  # query-key-value, output and head, at ten sizes of a step


def test_shared_and_dense_experts_have_products_of_their_own():
    deepseek = models.load("deepseek-v3")
    whole, alone = (kept(deepseek, kernels={"attention": attention}) for attention in (True, False))
    assert whole - alone == pytest.approx((3 + 2) * 10 + 2 * 8)
