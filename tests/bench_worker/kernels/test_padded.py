"""Padding of experts to equally many rows."""

import torch

from bench_worker.kernels.base import ExpertWeights
from bench_worker.kernels.padded import Padded
from bench_worker.kernels.registry import build
from bench_worker.models import presets
from bench_worker.spec import Spec
from bench_worker.weights import Weights

MODEL = presets()["olmoe-1b-7b"]


def weights():
    made = Weights(torch.float32, torch.device("cpu"), 0)
    return ExpertWeights(made.matrix(4, 2 * 16, 8), made.matrix(4, 8, 16))


def backend(**routing):
    spec = Spec.model_validate({"model": MODEL.name, "routing": routing})
    return build("padded", "gate_up", weights(), spec, MODEL)


def test_rows_are_padded_to_the_fullest_expert():
    assert backend().room(torch.tensor([3, 0, 9, 1]), num_tokens=13) == 9


def test_a_capacity_says_how_many_without_asking():
    # ceil(1.25 · 8 · 13 / 64) = ceil(2.03)
    assert backend(capacity_factor=1.25).room(torch.tensor([3, 0, 9, 1]), num_tokens=13) == 3


def test_what_stands_in_the_rows_beyond_does_not_matter():
    padded = Padded(weights(), "swiglu", "gate_up")
    rows = torch.full((4 * 3, 8), torch.nan)
    counts = torch.tensor([2, 0, 3, 1])
    real = torch.cat([torch.arange(n) + 3 * expert for expert, n in enumerate(counts.tolist())])
    rows[real] = torch.randn(6, 8)
    clean = rows.nan_to_num(0.0)
    assert torch.equal(padded(rows, counts)[real], padded(clean, counts)[real])
