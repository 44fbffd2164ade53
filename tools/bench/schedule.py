"""How long laying out a schedule takes, on one core. Quoted in docs/serving.md."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

from bench_worker.workload import Request
from bench_worker.workload.arrivals import recorded
from bench_worker.workload.generators import generate
from bench_worker.workload.schedule import Limits, OpenLoop, closed_loop

REQUESTS, MAX_BATCH_TOKENS, KV_TOKENS, STEP_US, REPEATS = 19_366, 2048, 100_000, 30_000, 5


def section() -> None:
    """As many requests as Azure's conversation trace of 2023 has, drawn with its lengths and gaps."""
    requests = generate("conversation", REQUESTS, seed=0)
    print(f"Scheduling {REQUESTS:,} requests of the conversation trace, {MAX_BATCH_TOKENS:,} tokens a step, one core")
    print(f"{'':>36}{'concurrency':>12}{'steps':>10}{'seconds':>10}{'repeats':>10}")
    schedules: dict[str, Callable[[Sequence[Request], int], int]] = {
        "closed loop": _closed,
        f"closed loop, {KV_TOKENS:,} KV tokens": partial(_closed, kv_tokens=KV_TOKENS),
        f"open loop, steps of {STEP_US / 1000:.0f} ms": _open,
    }
    for concurrency in (64, 256):
        for name, schedule in schedules.items():
            steps, seconds = 0, []
            for _ in range(REPEATS):
                start = time.process_time()
                steps = schedule(requests, concurrency)
                seconds.append(time.process_time() - start)
            print(f"{name:>36}{concurrency:>12}{steps:>10,}{statistics.median(seconds):>10.2f}{REPEATS:>10}")
    print()


def _closed(requests: Sequence[Request], concurrency: int, kv_tokens: int | None = None) -> int:
    return len(closed_loop(requests, concurrency, MAX_BATCH_TOKENS, kv_tokens=kv_tokens))


def _open(requests: Sequence[Request], concurrency: int) -> int:
    loop = OpenLoop(requests, recorded(requests), Limits(concurrency, MAX_BATCH_TOKENS))
    steps, now_us = 0, 0.0
    while (started := loop.next(now_us)) is not None:
        steps += 1
        now_us = started.start_us + STEP_US
    return steps
