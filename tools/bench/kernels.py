"""How near the expert backends come to what the machine can do, and whether ``auto`` finds the nearest."""

from __future__ import annotations

from bench_worker import environment, kernel_report, kernel_table
from bench_worker.kernel_report import Row

MODEL = "qwen3-30b-a3b"
#: Tokens of a step -> share of the experts' floor that ``auto`` should reach.
SHARES = {1: 0.85, 8: 0.85, 64: 0.85, 512: 0.75, 2048: 0.85}
#: ``auto`` is at least so fast as the best of these, and no call passes its floor by more.
OTHERS, AT_LEAST, AT_MOST = ("deepspeed", "loop", "padded"), 0.95, 1.05
#: A whole layer takes at most so many times its experts, from so many tokens on.
WHOLE, FROM_TOKENS = 1.08, 64


def section() -> None:
    tokens = list(SHARES)
    table = kernel_table.measure(kernel_report.spec_of(MODEL, tokens), tokens, environment.device())
    print(kernel_report.as_text(table))
    print(f"\n{'tokens':>7}{'auto of floor':>15}{'best other / auto':>19}{'layer / experts':>17}{'highest share':>15}")
    for count in tokens:
        rows = {row.backend: row for row in table.rows if row.tokens == count and row.available}
        print(f"{count:>7}{_share(rows['auto'], count)}{_speed(rows)}{_whole(rows['auto'])}{_highest(rows)}")
    print("! misses what it should reach")


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


def _mark(reached: bool) -> str:
    return " " if reached else "!"
