"""Statistics over samples. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench_worker.result import Distribution

__all__ = ["distribution"]


def distribution(values: Sequence[float] | np.ndarray) -> Distribution | None:
    """Percentiles of ``values`` by linear interpolation between order statistics (numpy's default), and their mean.

    None without values. The unit is that of the values.
    """
    samples = np.asarray(values, float)
    if not samples.size:
        return None
    p50, p90, p95, p99 = np.percentile(samples, [50, 90, 95, 99]).tolist()
    return Distribution(p50=p50, p90=p90, p95=p95, p99=p99, mean=float(samples.mean()), samples=samples.size)
