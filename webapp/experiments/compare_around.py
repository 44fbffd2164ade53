"""What the machine gave around runs of different times, which a ratio of their times holds too (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bench_worker.result import Probed
from webapp.experiments.compare import Measured
from webapp.experiments.compare_table import Table
from webapp.ui.formatting import number

#: A smaller difference of two probed rates is none: so much they vary on an idle machine.
ALIKE = 0.05


class Apart(NamedTuple):
    """Two runs around which the rate that sets their time differed: the contender's over the baseline's, and both in
    words."""

    ratio: float
    sentence: str


def sentence(table: Table) -> str | None:
    """Where runs that did not take turns found the machine in different states: the pair that differs most, and how
    many others. None where nobody looked, or all found it alike."""
    found = sorted(_apart(table), key=lambda apart: -max(apart.ratio, 1 / apart.ratio))
    if not found:
        return None
    more = f" {len(found) - 1} more of the ratios are of runs around which it differed." if len(found) > 1 else ""
    return f"{found[0].sentence}: a part of their ratio is the machine's.{more}"


def _apart(table: Table) -> Iterator[Apart]:
    base = table.base
    for row in table.others:
        for corner, ours, theirs in zip(table.corners, base.cells, row.cells, strict=True):
            if ours.run is None or theirs.run is None or ours.run.experiment == theirs.run.experiment:
                continue
            before, after = _deciding(ours.run), _deciding(theirs.run)
            if before is None or after is None or before.unit != after.unit:
                continue
            ratio = after.median / before.median
            if abs(ratio - 1) > ALIKE:
                yield Apart(
                    ratio,
                    f"The {before.what} gave {number(before.median)} {before.unit} around {base.contender.name} and "
                    f"{number(after.median)} around {row.contender.name} at {corner}",
                )


def _deciding(run: Measured) -> Probed | None:
    return run.noise.around.deciding if run.noise and run.noise.around else None
