"""How well and how fast change points are found in simulated histories. Quoted in docs/history.md."""

from __future__ import annotations

import time

from tools import histories
from webapp.history.detection import change_points

STEPS = ((1.08, 4), (1.08, 8), (1.05, 12))
#: How much of a night's luck its re-run shares; see `histories.SHARED`.
SHARES = (0.0, 0.5, 0.8)
SERIES, NIGHTS = 10, 1000


def section() -> None:
    """Each share with the number of histories that it stands on; 180 nights each."""
    print(f"Simulated histories: noise {histories.NOISE:.0%}, {histories.OUTLIERS:.0%} outliers, "
          f"drift {histories.DRIFT:.0%}, machines {histories.MACHINES:.1%} apart")  # fmt: skip
    print(f"{'':>60}{'result':>10}{'histories':>12}")
    for rerun in (False, True):
        print("with re-runs of suspected nights" if rerun else "without re-runs")
        for ratio, nights in STEPS:
            found = histories.found_share(range(500), ratio, nights, rerun)
            print(f"{f'step of {ratio - 1:.0%} told within {nights} nights':>60}{found:>10.1%}{500:>12}")
        for shared in SHARES if rerun else (0.0,):
            alerts, watched = histories.false_alerts(range(1000, 1200), rerun, shared)
            name = f"false alerts, {shared:.0%} of the noise shared" if rerun else "false alerts"
            print(f"{f'{name}, per 1,000 series-nights':>60}{1000 * alerts / watched:>10.2f}{200:>12}")
    print(f"{'a step and its reversal: two points':>60}{histories.two_points_share(range(500)):>10.1%}{500:>12}")
    long = [histories.history(seed, NIGHTS) for seed in range(SERIES)]
    start = time.process_time()
    for values in long:
        change_points(values)
    print(f"{f'seconds for {SERIES} series of {NIGHTS:,} nights':>60}{time.process_time() - start:>10.2f}{SERIES:>12}")
