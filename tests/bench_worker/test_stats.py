import numpy as np
import pytest

from bench_worker.stats import distribution


def test_percentiles_interpolate_between_order_statistics():
    """Of 10, 20, …, 50 the p-th percentile stands at rank 4·p/100: p90 = 46, p95 = 48, p99 = 49.6."""
    summary = distribution([50, 10, 40, 20, 30])
    assert summary.model_dump() == pytest.approx(
        {"p50": 30, "p90": 46, "p95": 48, "p99": 49.6, "mean": 30, "samples": 5}
    )


def test_one_value_is_every_percentile():
    summary = distribution(np.array([7.0]))
    assert set(summary.model_dump(exclude={"samples"}).values()) == {7.0}
    assert summary.samples == 1


@pytest.mark.parametrize("values", [[], np.array([])])
def test_no_values_have_no_distribution(values):
    assert distribution(values) is None


def test_figures_are_plain_numbers():
    assert {type(v) for v in distribution(np.float32([1, 2])).model_dump().values()} == {float, int}
