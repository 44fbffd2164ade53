"""DeepSpeed's grouped experts against one float64 expert at a time, for every way rows can fall on experts."""

import pytest
import torch

from bench_worker import reference
from bench_worker.kernels.base import ExpertWeights
from bench_worker.kernels.deepspeed_grouped import DeepSpeedGrouped
from bench_worker.spec import Spec
from bench_worker.weights import Weights

CPU = torch.device("cpu")
LOADS = {
    "one row": [0, 0, 1, 0],
    "uniform": [3, 3, 3, 3],
    "skewed": [9, 4, 2, 1],
    "half on one": [8, 3, 3, 2],
    "all on one": [0, 16, 0, 0],
    "some empty": [5, 0, 0, 7],
    "odd sizes": [1, 17, 33, 2],
}


@pytest.mark.parametrize("counts", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize("activation", ["swiglu", "swiglu_oai"])
@pytest.mark.parametrize("fusion", ["none", "gate_up"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_it_equals_one_expert_at_a_time_in_float64(counts, activation, fusion, dtype, tolerance):
    weights = Weights(dtype, CPU, seed=sum(counts))
    experts = ExpertWeights(gate_up=weights.matrix(4, 2 * 192, 256), down=weights.matrix(4, 256, 192))
    rows = weights.noise(sum(counts), 256)
    actual = DeepSpeedGrouped(experts, activation, fusion)(rows, torch.tensor(counts))
    expected = torch.cat([
        reference.activate(x @ gate.T, x @ up.T, activation) @ down.T
        for x, gate, up, down in zip(
            rows.double().split(counts), experts.gate.double(), experts.up.double(), experts.down.double(), strict=True
        )
    ])  # fmt: skip
    assert reference.relative_error(actual, expected) < tolerance


def test_it_says_what_it_can_not_fuse():
    spec = Spec.model_validate({"model": "olmoe-1b-7b", "kernels": {"fusion": "whole"}})
    assert "use none or gate_up" in (DeepSpeedGrouped.supports(spec, CPU) or "")


def test_it_runs_on_the_cpu():
    assert DeepSpeedGrouped.supports(Spec.model_validate({"model": "olmoe-1b-7b"}), CPU) is None
