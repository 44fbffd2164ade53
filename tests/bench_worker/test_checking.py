"""What a check says of the errors that were found."""

import math

import pytest

from bench_worker import checking
from bench_worker.checking import WRONG, Errors
from bench_worker.spec import Spec


def spec(**kernels):
    return Spec.model_validate({"model": "olmoe-1b-7b", "kernels": kernels})


def test_the_worst_error_counts_and_so_does_the_worst_rounding():
    found = [Errors(0.002, 0.2), Errors(0.004, 0.1)]
    check = checking.check(found, spec(quantization="int4", experts="loop"), [None], tokens=8)
    assert (check.rel_error, check.quantization_error, check.tokens, check.passed) == (0.004, 0.2, 8, True)


def test_without_quantization_nothing_is_said_of_rounding():
    assert checking.check([Errors(0.004)], spec(), [None], tokens=8).quantization_error is None


@pytest.mark.parametrize(
    ("formats", "dtype", "tolerance"),
    [([None], "bfloat16", 1e-2), ([None], "float32", 1e-5), ([None, "int8"], "bfloat16", 5e-2), ([], "float16", 2e-3)],
)
def test_kernels_that_round_rows_may_be_further_off(formats, dtype, tolerance):
    assert checking.check([Errors(0.0)], spec(dtype=dtype), formats, tokens=8).tolerance == tolerance


def test_another_choice_of_experts_is_wrong_whatever_the_numbers_are():
    check = checking.check([Errors(0.0), WRONG], spec(), [None], tokens=8)
    assert not check.passed
    assert math.isinf(WRONG.kernel)
    assert check.rel_error is None
