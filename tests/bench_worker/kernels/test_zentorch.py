"""zentorch: its weights live on, its rows are split evenly, and it says where it can't run."""

import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.kernels import zentorch
from bench_worker.kernels.base import ExpertWeights
from bench_worker.kernels.zentorch import LEAST_PART, PARTS_PER_THREAD, ZenTorch
from bench_worker.spec import Spec
from bench_worker.weights import Weights

CPU = torch.device("cpu")
needed = pytest.mark.skipif(bool(zentorch.missing(CPU)), reason=f"zentorch: {zentorch.missing(CPU)}")


def spec(**kernels):
    return Spec.model_validate({"model": kernels.pop("model", "olmoe-1b-7b"), "kernels": kernels})


@needed
def test_the_experts_that_it_has_seen_outlive_everyone_else():
    made = Weights(torch.bfloat16, CPU, 0)
    weights = ExpertWeights(made.matrix(2, 64, 64), made.matrix(2, 64, 32))
    seen = [weakref.ref(weights.gate_up), weakref.ref(weights.down)]
    ZenTorch(weights, "swiglu", "whole")
    del weights
    gc.collect()
    assert all(weight() is not None for weight in seen)


@needed
def test_a_weight_of_a_plain_product_outlives_everyone_else_too():
    made = Weights(torch.float32, CPU, 0)
    rows, weight = made.noise(3, 64), made.matrix(16, 64)
    torch.testing.assert_close(zentorch.linear(rows, weight), rows @ weight.T)
    seen = weakref.ref(weight)
    del weight
    gc.collect()
    assert seen() is not None


@needed
def test_warming_computes_nothing_that_shows():
    made = Weights(torch.bfloat16, CPU, 0)
    backend = ZenTorch(ExpertWeights(made.matrix(2, 64, 64), made.matrix(2, 64, 32)), "swiglu", "whole")
    rows, counts = made.noise(4, 64), torch.tensor([1, 3])
    before = backend(rows.clone(), counts)
    backend.warm()
    assert torch.equal(backend(rows.clone(), counts), before)


@given(st.lists(st.integers(0, 700), min_size=1, max_size=40))
def test_large_experts_are_split_and_no_row_is_lost(sizes):
    counts = torch.tensor(sizes)
    total = sum(sizes)
    experts, parts = zentorch._parts(counts, total)
    most = max(LEAST_PART, -(-total // (PARTS_PER_THREAD * torch.get_num_threads())))
    assert experts == sorted(experts)
    assert all(0 < part <= most for part in parts)
    summed = [sum(part for own, part in zip(experts, parts, strict=True) if own == e) for e in range(len(sizes))]
    assert summed == sizes


def test_it_is_refused_on_a_gpu():
    reason = ZenTorch.supports(spec(), torch.device("cuda", 0))
    assert reason == "kernels.experts: 'zentorch' can't run: it runs on x86-64 CPUs only, and this device is cuda"


def test_it_is_refused_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(zentorch.importlib.util, "find_spec", lambda name: None)
    assert "it is not installed here; its package exists for x86-64 Linux only" in (
        ZenTorch.supports(spec(), CPU) or ""
    )


def test_it_is_refused_without_avx512(monkeypatch):
    monkeypatch.setattr(zentorch.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert "needs a CPU with AVX-512, and this one offers AVX2" in (ZenTorch.supports(spec(), CPU) or "")


@needed
@pytest.mark.parametrize(
    ("kernels", "reason"),
    [
        ({"dtype": "float16"}, "computes in bfloat16 or float32; kernels.dtype is float16"),
        (
            {"model": "gpt-oss-20b", "fusion": "whole"},
            "the experts of gpt-oss-20b use swiglu_oai, so use none or gate_up",
        ),
        ({"model": "gpt-oss-20b", "fusion": "gate_up"}, None),
        ({"fusion": "whole"}, None),
    ],
)
def test_it_says_what_it_can_not_compute(kernels, reason):
    said = ZenTorch.supports(spec(**kernels), CPU)
    assert said is None if reason is None else reason in said
