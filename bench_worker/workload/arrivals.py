"""When requests reach the server in open loop. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench_worker.workload import Request

__all__ = ["poisson", "recorded"]


def recorded(requests: Sequence[Request], speedup: float = 1.0) -> np.ndarray:
    """The trace's own times in µs from its first request, ``speedup`` times as fast; float64 [n]."""
    arrival_s = np.array([request.arrival_s for request in requests], float)
    return (arrival_s - arrival_s[:1]) * 1e6 / speedup


def poisson(count: int, rate: float, seed: int) -> np.ndarray:
    """A Poisson process of ``rate`` requests a second, from its first arrival on, in µs; float64 [count].

    Gaps are exponential with mean 1/rate. The same seed gives the same times at any rate, stretched.
    """
    gaps = np.random.default_rng((seed, 0xA881)).standard_exponential(count)
    gaps[:1] = 0.0
    return np.cumsum(gaps) * 1e6 / rate
