"""What a comparison says of the machine around its runs."""

from __future__ import annotations

from typing import Literal

from bench_worker.noise import Seen, around
from bench_worker.result import Noise
from tests.webapp.experiments.measured import measured, of
from webapp.experiments.compare import Measured
from webapp.experiments.compare_around import sentence
from webapp.experiments.compare_table import table


def seen(
    variant: str, bandwidth: float | None, *, id: int, decides: Literal["memory", "matrix"] = "memory", **changes: int
) -> Measured:
    """A run of the experiment of its own number, on a bus that gave ``bandwidth`` GB/s; None: nobody looked."""
    machine = None if bandwidth is None else around([Seen(bandwidth, 10 * bandwidth)], Seen(80.0, 800.0), decides)
    noise = Noise(label="steady", samples=200, around=machine)
    return measured(variant, id=id, noise=noise, **{"experiment": id} | changes)  # type: ignore[arg-type]


def words(*runs: Measured) -> str | None:
    found = of(*runs)
    return sentence(table(found, found[0]))


def test_runs_of_two_times_on_a_bus_that_was_not_alike_are_told() -> None:
    assert words(seen("a", 79.0, id=1), seen("b", 49.0, id=2)) == (
        "The memory bus gave 79.0 GB/s around a and 49.0 around b at 1×16: a part of their ratio is the machine's."
    )
    products = words(seen("a", 79.0, id=1, decides="matrix"), seen("b", 49.0, id=2, decides="matrix"))
    assert products is not None
    assert products.startswith("The matrix products gave 790 GFLOP/s around a and 490 around b at 1×16: a part")


def test_of_several_the_one_that_differs_most_is_told() -> None:
    found = words(seen("a", 79.0, id=1), seen("b", 70.0, id=2), seen("c", 49.0, id=3), seen("d", 78.0, id=4))
    assert found is not None
    assert "around c at" in found
    assert found.endswith("1 more of the ratios are of runs around which it differed.")


def test_runs_that_took_turns_had_the_same_machine() -> None:
    assert words(seen("a", 79.0, id=1), seen("b", 49.0, id=2, experiment=1)) is None


def test_alike_unseen_or_different_rates_are_not_told() -> None:
    assert words(seen("a", 79.0, id=1), seen("b", 76.0, id=2)) is None
    assert words(seen("a", None, id=1), seen("b", 76.0, id=2)) is None
    assert words(seen("a", 79.0, id=1, decides="matrix"), seen("b", 49.0, id=2)) is None
