import numpy as np
import pytest

from bench_worker.workload import Request
from bench_worker.workload.arrivals import poisson, recorded


def test_recorded_times_count_from_the_first_request_and_run_faster():
    requests = [Request(second, 1, 1) for second in (10.0, 10.5, 14.0)]
    assert recorded(requests).tolist() == [0.0, 500_000.0, 4_000_000.0]
    assert recorded(requests, speedup=4).tolist() == [0.0, 125_000.0, 1_000_000.0]
    assert recorded([]).tolist() == []


def test_a_poisson_process_has_exponential_gaps_of_its_rate():
    """10,000 gaps: mean and standard deviation are 1/rate, within 5% (five standard errors)."""
    gaps_s = np.diff(poisson(10_001, 8.0, seed=1)) / 1e6
    assert gaps_s.mean() == pytest.approx(1 / 8, rel=0.05)
    assert gaps_s.std() == pytest.approx(1 / 8, rel=0.05)
    assert np.quantile(gaps_s, 0.5) == pytest.approx(np.log(2) / 8, rel=0.05)


def test_the_same_seed_gives_the_same_times_stretched_by_the_rate():
    assert poisson(50, 2.0, seed=3) == pytest.approx(4 * poisson(50, 8.0, seed=3))
    assert poisson(50, 2.0, seed=3).tolist() != poisson(50, 2.0, seed=4).tolist()
    assert poisson(50, 2.0, seed=3)[:9].tolist() == poisson(9, 2.0, seed=3).tolist()
    assert poisson(0, 2.0, seed=3).tolist() == []
    assert poisson(5, 2.0, seed=3)[0] == 0
