"""How near the expert backends come to what the machine can do, and whether ``auto`` finds the nearest."""

from __future__ import annotations

import statistics

from bench_worker import calibrate, environment, kernel_report, kernel_table, models
from bench_worker.kernel_report import Row
from bench_worker.models import Model

MODEL = "qwen3-30b-a3b"
#: Tokens of a step -> share of the experts' floor that ``auto`` should reach.
SHARES = {1: 0.85, 8: 0.85, 64: 0.85, 512: 0.75, 2048: 0.85}
#: ``auto`` is at least so fast as the best of these, and no call passes its floor by more.
OTHERS, AT_LEAST, AT_MOST = ("deepspeed", "loop", "padded"), 0.95, 1.05
#: A whole layer takes at most so many times its experts, from so many tokens on.
WHOLE, FROM_TOKENS = 1.08, 64
#: At so many tokens the rate of the experts is also held against dense products of as many rows, over so many weights
#: in turn that no cache has them.
DENSE_TOKENS, DENSE_WEIGHTS, DENSE_ROUNDS = 512, 32, 96


def section() -> None:
    tokens = list(SHARES)
    table = kernel_table.measure(kernel_report.spec_of(MODEL, tokens), tokens, environment.device())
    print(kernel_report.as_text(table))
    print(f"\n{'tokens':>7}{'auto of floor':>15}{'best other / auto':>19}{'layer / experts':>17}{'highest share':>15}")
    for count in tokens:
        rows = {row.backend: row for row in table.rows if row.tokens == count and row.available}
        print(f"{count:>7}{_share(rows['auto'], count)}{_speed(rows)}{_whole(rows['auto'])}{_highest(rows)}")
    print("! misses what it should reach")
    auto = next(row for row in table.rows if row.backend == "auto" and row.tokens == DENSE_TOKENS)
    print(f"\n{_beside_dense(auto, models.load(MODEL))}")


def _share(auto: Row, tokens: int) -> str:
    assert auto.share is not None
    return f"{auto.share:>14.0%}{_mark(auto.share >= SHARES[tokens])}"


def _speed(rows: dict[str, Row]) -> str:
    """The time of the best other backend over that of ``auto``, in the experts stage."""
    best = min(rows[name].experts_us or 0 for name in OTHERS if name in rows)
    ratio = best / (rows["auto"].experts_us or 1)
    return f"{ratio:>17.2f}×{_mark(ratio >= AT_LEAST)}"


def _whole(auto: Row) -> str:
    assert auto.layer_us is not None and auto.experts_us is not None  # noqa: PT018
    ratio = auto.layer_us / auto.experts_us
    return f"{ratio:>16.3f}{_mark(ratio <= WHOLE or auto.tokens < FROM_TOKENS)}"


def _highest(rows: dict[str, Row]) -> str:
    highest = max(row.share or 0 for row in rows.values())
    return f"{highest:>14.0%}{_mark(highest <= AT_MOST)}"


def _beside_dense(auto: Row, model: Model) -> str:
    """The matrix rate of ``auto`` beside that of dense products with as many rows as an expert has on average: where
    few rows share a weight, reading it and multiplying by it overlap only in part, for any kernel."""
    assert auto.experts_us is not None
    per_expert = auto.tokens * model.top_k // model.experts
    reached = auto.tokens * model.top_k * expert_flops(model) / auto.experts_us / 1e3
    dense, cached = (dense_rate(model, per_expert, weights) / 1e9 for weights in (DENSE_WEIGHTS, 1))
    return (
        f"{auto.tokens} tokens, {per_expert} rows an expert: auto {reached:,.0f} GFLOP/s, {reached / dense:.0%} of "
        f"dense products as tall over rotating weights ({dense:,.0f}; with the weight in cache {cached:,.0f})"
    )


def expert_flops(model: Model) -> int:
    """Of one row: gate, up and down projection."""
    return 2 * 3 * model.hidden * model.expert_intermediate


def dense_rate(model: Model, rows: int, weights: int) -> float:
    """FLOPs a second of an expert's two products with ``rows``, by the fastest kernel of each; ``weights`` take
    turns."""
    hidden, inner, device = model.hidden, model.expert_intermediate, environment.device()
    shapes = (rows, hidden, 2 * inner), (rows, inner, hidden)
    seconds = 0.0
    for shape in shapes:
        kernels = list(calibrate.matrix_kernels(device, ["bfloat16"], [shape], weights))
        for kernel in kernels:
            for turn in range(weights):  # a first use may pack the weight
                kernel.run(turn)
        calibrate.measure(kernels, device, DENSE_ROUNDS, calibrate.SECONDS)
        seconds += min(statistics.median(kernel.seconds) for kernel in kernels)
    return rows * expert_flops(model) / seconds


def _mark(reached: bool) -> str:
    return " " if reached else "!"
