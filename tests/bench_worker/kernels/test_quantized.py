"""Experts in a narrower number format: how they are rounded, stored and read."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.capacity import stored_bytes
from bench_worker.kernels.base import ExpertWeights
from bench_worker.kernels.quantized import FORMATS, GROUP, Rounded, quantize
from bench_worker.weights import Weights

CPU = torch.device("cpu")
H, INTERMEDIATE, E = 256, 128, 4
MOST = {"int8": 127, "int4": 7}


def experts(seed=0):
    made = Weights(torch.bfloat16, CPU, seed)
    return ExpertWeights(made.matrix(E, 2 * INTERMEDIATE, H), made.matrix(E, H, INTERMEDIATE))


def quantized(source, quantization, chosen=range(E)):
    return quantize(source, chosen, (H, INTERMEDIATE), torch.bfloat16, quantization)


def rounded(matrix, quantization):
    """One matrix as its format rounds it."""
    return Rounded(ExpertWeights(torch.stack([torch.cat((matrix, matrix))]), matrix[None]), quantization).of(0)[2]


def test_an_int8_row_is_its_largest_value_in_127_steps():
    row = torch.zeros(1, GROUP)
    row[0, :4] = torch.tensor([127.0, -126.4, 0.6, 0.4])  # steps of 1
    assert rounded(row, "int8")[0, :5].tolist() == [127, -126, 1, 0, 0]
    assert rounded(torch.cat((row, 2 * row)), "int8")[1, :4].tolist() == [254, -252, 2, 0]  # a scale for each row


def test_an_int4_group_is_its_largest_value_in_7_steps():
    row = torch.zeros(1, 2 * GROUP)
    row[0, :4] = torch.tensor([-7.0, 3.4, 3.6, 0.4])
    row[0, GROUP : GROUP + 2] = torch.tensor([70.0, 14.0])  # a group of its own, in steps of 10
    assert rounded(row, "int4")[0, :4].tolist() == [-7, 3, 4, 0]
    assert rounded(row, "int4")[0, GROUP : GROUP + 3].tolist() == [70, 10, 0]


@pytest.mark.parametrize("quantization", FORMATS)
@given(exponent=st.integers(-20, 8), seed=st.integers(0, 1000))
def test_no_value_moves_by_more_than_half_a_step(quantization, exponent, seed):
    matrix = Weights(torch.float32, CPU, seed).noise(3, 2 * GROUP) * 2.0**exponent
    step = matrix.unflatten(1, (-1, GROUP)).abs().amax(dim=-1, keepdim=True) / MOST[quantization]
    if quantization == "int8":
        step = step.amax(dim=1, keepdim=True)
    moved = (rounded(matrix, quantization) - matrix).unflatten(1, (-1, GROUP)).abs()
    assert bool((moved <= 0.5001 * step).all())


@pytest.mark.parametrize("quantization", FORMATS)
def test_zeros_stay_zeros(quantization):
    assert not rounded(torch.zeros(2, GROUP), quantization).any()


@pytest.mark.parametrize("quantization", FORMATS)
def test_products_are_those_of_the_rounded_matrices(quantization):
    source = experts()
    held, rows = quantized(source, quantization), Weights(torch.bfloat16, CPU, 1).noise(5, H)
    for expert in range(E):
        gate, up, _ = Rounded(source, quantization).of(expert)
        wanted = rows.double() @ torch.cat((gate, up)).double().T
        torch.testing.assert_close(held.gate_up.product(rows, expert).double(), wanted, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("quantization", FORMATS)
def test_they_take_as_many_bytes_as_the_memory_check_counts(quantization):
    held = quantized(experts(), quantization)
    stored = sum(m.values.nbytes + m.scales.nbytes for m in (held.gate_up, held.down))
    assert stored == E * stored_bytes(H, INTERMEDIATE, 2, quantization)


@pytest.mark.parametrize("quantization", FORMATS)
def test_some_experts_are_taken_without_a_copy_where_they_lie_together(quantization):
    held = quantized(experts(), quantization)
    together, apart = held.take(slice(1, 3)), held.take(torch.tensor([3, 0]))
    assert together.down.values.data_ptr() == held.down.values[1].data_ptr()
    assert torch.equal(apart.gate_up.values, held.gate_up.values[[3, 0]])
    assert torch.equal(apart.down.scales, held.down.scales[[3, 0]])


@pytest.mark.parametrize("quantization", FORMATS)
def test_the_experts_that_are_asked_for_come_in_that_order_each_with_a_sign(quantization):
    source, signs = experts(), []
    held = quantize(
        source, [2, 0], (H, INTERMEDIATE), torch.bfloat16, quantization, lambda: signs.append(len(signs) + 1)
    )
    whole = quantized(source, quantization)
    assert torch.equal(held.down.values, whole.down.values[[2, 0]])
    assert signs == [1, 2]
