"""What a series says besides its change points (pure). Shapes: ``N`` nights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

#: Nights of a week, and the least of them that a comparison of two weeks needs.
WEEK, LEAST = 7, 4
#: Normal noise is within so many standard deviations on 95% of the nights.
SIGMAS = 1.96
_MAD_TO_SIGMA = 1.4826


def week_change(values: Sequence[float]) -> list[float]:
    """How the last week compares with the one before: ratio of the geometric means, and its 95% interval, low and high.

    ``values`` [N], all above 0. Welch's t on logarithms (Welch, Biometrika 1947). Empty with fewer than `LEAST` nights
    in either week.
    """
    from scipy.special import stdtrit  # here: a fifth of a process's start, and only who analyses nights needs it

    logs = np.log(np.asarray(values[-2 * WEEK :], float))
    now, before = logs[-WEEK:], logs[:-WEEK]
    if before.size < LEAST:
        return []
    step = float(now.mean() - before.mean())
    parts = [float(side.var(ddof=1)) / side.size for side in (now, before)]
    error = math.sqrt(sum(parts))
    reach = 0.0
    if error:
        freedom = sum(parts) ** 2 / sum(
            part**2 / (side.size - 1) for part, side in zip(parts, (now, before), strict=True)
        )
        reach = float(stdtrit(freedom, 0.975)) * error
    return [math.exp(step), math.exp(step - reach), math.exp(step + reach)]


def usual_range(values: Sequence[float], changes: Sequence[int]) -> tuple[list[float], list[float]]:
    """Where 95% of the nights of each level lie, low [N] and high [N]: its median, and 1.96 standard deviations that
    are estimated from the median absolute deviation, on logarithms. ``changes``: the first night of each new level."""
    logs = np.log(np.asarray(values, float))
    low, high = np.empty_like(logs), np.empty_like(logs)
    for level in np.split(np.arange(logs.size), list(changes)):
        if level.size:
            middle = float(np.median(logs[level]))
            reach = SIGMAS * _MAD_TO_SIGMA * float(np.median(np.abs(logs[level] - middle)))
            low[level], high[level] = middle - reach, middle + reach
    return np.exp(low).tolist(), np.exp(high).tolist()
