from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from bench_worker.average_ranks import average_ranks


def test_equal_samples_share_the_mean_of_their_ranks() -> None:
    assert average_ranks(np.array([3.0, 1.0, 3.0, 2.0, 3.0])).tolist() == [4, 1, 4, 2, 4]
    assert average_ranks(np.array([])).tolist() == []


@given(st.lists(st.integers(-5, 5) | st.floats(allow_nan=False)))
def test_they_are_those_of_scipy(samples: list[float]) -> None:
    np.testing.assert_array_equal(average_ranks(np.array(samples, float)), rankdata(np.array(samples, float)))


def test_the_web_and_a_worker_start_without_scipys_statistics() -> None:
    start = "import sys, django; django.setup(); import webapp.celery, webapp.urls"
    asked = f"{start}; sys.exit('scipy.stats' in sys.modules)"
    subprocess.run([sys.executable, "-c", asked], check=True)
