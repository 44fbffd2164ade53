"""What a check says of the errors that were found."""

import pytest

from bench_worker import checking
from bench_worker.checking import WRONG, Errors
from bench_worker.spec import Spec


def spec(**kernels):
    return Spec.model_validate({"model": "olmoe-1b-7b", "kernels": kernels})


def test_the_worst_error_counts_and_so_does_the_worst_rounding():
    found = [(Errors(0.002, 0.2), None), (Errors(0.004, 0.1), None)]
    check = checking.check(found, spec(quantization="int4", experts="loop"), tokens=8)
    assert (check.rel_error, check.quantization_error, check.tokens, check.passed) == (0.004, 0.2, 8, True)


def test_without_quantization_nothing_is_said_of_rounding():
    assert checking.check([(Errors(0.004), None)], spec(), tokens=8).quantization_error is None


@pytest.mark.parametrize(
    ("rounds", "dtype", "tolerance"),
    [(None, "bfloat16", 1e-2), (None, "float32", 1e-5), ("int8", "bfloat16", 5e-2), (None, "float16", 2e-3)],
)
def test_a_kernel_that_rounds_rows_may_be_further_off(rounds, dtype, tolerance):
    assert checking.check([(Errors(0.0), rounds)], spec(dtype=dtype), tokens=8).tolerance == tolerance


@pytest.mark.parametrize("own", [0.02, 0.005])
def test_each_kernel_is_held_against_its_own_tolerance(own):
    """0.02 is more than a kernel may be off that takes rows as they are, whatever stands beside it."""
    found = [(Errors(0.03), "int8"), (Errors(own), None)]
    check = checking.check(found, spec(quantization="int8", experts="auto"), tokens=8)
    assert check.passed is (own < 1e-2)
    assert (check.rel_error, check.tolerance) == ((0.03, 5e-2) if check.passed else (own, 1e-2))


def test_another_choice_of_experts_is_wrong_whatever_the_numbers_are():
    quantized = spec(quantization="int8", experts="loop")
    check = checking.check([(Errors(0.0, 0.01), None), (WRONG, None)], quantized, tokens=8)
    assert not check.passed
    assert (check.rel_error, check.quantization_error) == (None, None)
