"""What pages show of a table of expert backends, and of a machine's ceilings over time (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench_worker.ceilings import Ceiling, Ceilings
from bench_worker.kernel_report import Row, Table
from bench_worker.kernels.rules import bare
from webapp.experiments import fingerprints
from webapp.experiments.fingerprints import Change
from webapp.experiments.kernels import is_unverified
from webapp.ui.formatting import MISSING, number

#: Shares of the floor at which a cell of the heat table takes its next colour.
LEVELS = (0.25, 0.5, 0.75, 0.9)
#: Two tables are measured at two times on machines that others share: a smaller difference counts as none.
ALIKE = 0.05


class Cell(NamedTuple):
    """One backend at one number of tokens. ``level``: 0 to 4, by its share of the floor."""

    row: Row
    level: int
    is_best: bool


@dataclass(frozen=True)
class Grid:
    """Backends × tokens; a backend that is available at no size stands in ``away``, with why."""

    table: Table
    sizes: list[int]
    lines: list[tuple[str, list[Cell | None]]]
    away: dict[str, str]

    @property
    def unverified(self) -> bool:
        return is_unverified(self.table.environment)

    @property
    def rows(self) -> list[Row]:
        """All that were measured, by tokens."""
        return [row for row in self.table.rows if row.available]


class Moved(NamedTuple):
    """A backend, with later / earlier time of the experts at each size; None where one of the two has none."""

    backend: str
    ratios: list[float | None]

    @property
    def cells(self) -> list[tuple[float | None, bool]]:
        """Each ratio, and whether it counts as no change."""
        return [(ratio, ratio is not None and abs(ratio - 1) <= ALIKE) for ratio in self.ratios]


@dataclass(frozen=True)
class Changes:
    """What changed from one table to a later one: in the machine, in its ceilings, and in each backend's times."""

    facts: list[Change]
    ceilings: list[tuple[Change, float]]
    sizes: list[int]
    moved: list[Moved]

    @property
    def sentence(self) -> str:
        ratios = [ratio for moved in self.moved for ratio in moved.ratios if ratio is not None]
        slower = sum(ratio > 1 + ALIKE for ratio in ratios)
        faster = sum(ratio < 1 - ALIKE for ratio in ratios)
        if not ratios:
            return "The two have no backend and size in common."
        if not slower and not faster:
            return f"No time differs by more than {ALIKE:.0%}."
        found = [f"{count} {how}" for count, how in ((slower, "slower"), (faster, "faster")) if count]
        return f"Of {len(ratios)} times, {' and '.join(found)} by more than {ALIKE:.0%}."


class Rate(NamedTuple):
    """A ceiling with its change against the one before, if any; ``below``: how far its median lies from it."""

    ceiling: Ceiling | None
    change: float | None = None
    below: float | None = None


class Calibration(NamedTuple):
    """Ceilings as they were once, one cell for each of the table's columns."""

    ceilings: Ceilings
    cells: list[Rate]


def grid(table: Table) -> Grid:
    sizes = list(dict.fromkeys(row.tokens for row in table.rows))
    found = {(row.backend, row.tokens): row for row in table.rows if row.available}
    names = list(dict.fromkeys(row.backend for row in table.rows))
    there = [name for name in names if any((name, size) in found for size in sizes)]
    return Grid(
        table=table,
        sizes=sizes,
        lines=[(name, [_cell(found.get((name, size))) for size in sizes]) for name in there],
        away={row.backend: bare(row.reason or "") for row in table.rows if row.backend not in there},
    )


def _cell(row: Row | None) -> Cell | None:
    if row is None or row.share is None:
        return None
    return Cell(row, sum(row.share >= level for level in LEVELS), row.ratio == 1)


def changes(before: Table, after: Table) -> Changes:
    """Of two tables for the same model, the earlier one first."""
    old = {(row.backend, row.tokens): row.experts_us for row in before.rows}
    new = {(row.backend, row.tokens): row.experts_us for row in after.rows}
    common = [size for size in dict.fromkeys(row.tokens for row in after.rows) if any(size == t for _, t in old)]
    moved = [
        Moved(name, [_ratio(old.get((name, size)), new.get((name, size))) for size in common])
        for name in dict.fromkeys(row.backend for row in after.rows)
    ]
    return Changes(
        facts=[*_meanwhile(before, after), *fingerprints.changes(before.environment, after.environment)],
        ceilings=_moved_ceilings(rates(_calibrated(before)), rates(_calibrated(after))),
        sizes=common,
        moved=[line for line in moved if any(ratio is not None for ratio in line.ratios)],
    )


def _meanwhile(before: Table, after: Table) -> list[Change]:
    """What else happened on the machine, where that makes one of the two doubtful."""
    old, new = (" ".join(table.environment.get("flags", [])) for table in (before, after))
    return [Change("Meanwhile", old or MISSING, new or MISSING)] if old or new else []


def _ratio(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after / before


def _calibrated(table: Table) -> Ceilings:
    return next(iter((table.ceilings or {}).values()), table.meanwhile)


def _moved_ceilings(old: Mapping[str, Ceiling], new: Mapping[str, Ceiling]) -> list[tuple[Change, float]]:
    return [
        (Change(name, rate(old.get(name)), rate(found)), found.value / old[name].value - 1)
        for name, found in new.items()
        if name in old
    ]


def rates(ceilings: Ceilings) -> dict[str, Ceiling]:
    """The ceilings by what they are of."""
    return {"Read": ceilings.read, "Copy": ceilings.copy_rate, **ceilings.matrix}


def rate(ceiling: Ceiling | None) -> str:
    """A rate with its unit: ``40.1 GB/s``."""
    return MISSING if ceiling is None else f"{number(ceiling.value)} {ceiling.unit}"


def over_time(
    documents: Iterable[Mapping[str, Any] | None], most: int | None = None
) -> tuple[list[str], list[Calibration]]:
    """The ``most`` latest calibrations in results' ``ceilings``, each once, latest first: the names of their ceilings
    (the columns) and the lines."""
    every = (Ceilings.model_validate(one) for document in documents for one in (document or {}).values())
    found = {(one.threads, one.measured_at): one for one in every}
    ordered = sorted(found.values(), key=lambda one: one.measured_at)
    names = list(dict.fromkeys(name for one in ordered[::-1][:most] for name in rates(one)))
    last: dict[int, dict[str, Ceiling]] = {}
    lines = []
    for one in ordered:
        own, before = rates(one), last.get(one.threads, {})
        lines.append(Calibration(one, [_rate(own.get(name), before.get(name)) for name in names]))
        last[one.threads] = own
    return names, lines[::-1][:most]


def _rate(ceiling: Ceiling | None, before: Ceiling | None) -> Rate:
    if ceiling is None:
        return Rate(None)
    return Rate(ceiling, None if before is None else ceiling.value / before.value - 1, -ceiling.spread)
