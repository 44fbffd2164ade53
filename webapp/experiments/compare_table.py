"""Runs as contenders at corners, against one of them (pure).

A **contender** is one configuration, measured at some **corners**; one of the contenders is the baseline. Runs stand in
one corner when they executed the same batches; only there step times have a ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench_worker.spec import flat, label
from bench_worker.stats import geometric_mean, holm
from webapp.experiments import origins
from webapp.experiments.compare import METRICS, STEP, Compare, Compared, Measured, compare
from webapp.ui.formatting import MISSING, number, percent

#: A ratio that is larger than the smallest by this factor is not tested for being level with it.
NEAR = 1.1


@dataclass(frozen=True)
class Contender:
    """One configuration. ``runs``: by corner, in the order of the table's corners."""

    key: str
    name: str
    runs: Mapping[str, Measured]

    @property
    def first(self) -> Measured:
        return next(iter(self.runs.values()))


class Cell(NamedTuple):
    """A contender at a corner: its run, or None, and the run against the baseline's, or None of the baseline itself."""

    run: Measured | None
    step: Compared | None
    #: Whether no other is faster here for certain.
    leads: bool = False


class Row(NamedTuple):
    """``mean``: the geometric mean of the ratios over the corners, where there is more than one; ``traits``: by the
    names of the table."""

    contender: Contender
    is_base: bool
    cells: list[Cell]
    mean: Compared | None
    traits: list[str]


@dataclass(frozen=True)
class Table:
    """Contenders × corners; the rows stand in the order in which the contenders were named."""

    corners: list[str]
    rows: list[Row]
    #: Names of the traits in which the contenders differ.
    traits: list[str]

    @property
    def has_means(self) -> bool:
        return any(row.mean for row in self.rows)

    @property
    def marks(self) -> list[str]:
        """By how much the times in it scale."""
        return origins.scales(run.layer_scale for run in self._runs)

    @property
    def networks(self) -> list[tuple[str, str]]:
        """Marks of the modelled networks that have a part in them, with their words."""
        return origins.networks(run.origin for run in self._runs)

    @property
    def _runs(self) -> list[Measured]:
        return [run for row in self.rows for run in row.contender.runs.values()]

    @property
    def base(self) -> Row:
        return next(row for row in self.rows if row.is_base)

    @property
    def others(self) -> list[Row]:
        return [row for row in self.rows if not row.is_base]

    def leaders(self, corner: str) -> list[Contender]:
        """Those that none beats for certain at ``corner``, the fastest first; empty where no ratio is known."""
        place = self.corners.index(corner)
        leading = [row for row in self.rows if row.cells[place].leads]
        return [row.contender for row in sorted(leading, key=lambda row: _ratio(row, place))]


def _ratio(row: Row, place: int) -> float:
    step = row.cells[place].step
    return step.found.ratio if step and step.found else 1.0


def table(contenders: Sequence[Contender], base: Contender, compare: Compare = compare) -> Table:
    """Every contender against ``base`` at every corner, by whole steps; p-values are corrected for the number of
    contenders."""
    corners = list(dict.fromkeys(corner for contender in contenders for corner in contender.runs))
    others = [contender for contender in contenders if contender is not base]
    against = {corner: _column(others, base, corner, STEP, compare) for corner in corners}
    means = dict(zip([other.key for other in others], _means(others, corners, against), strict=True))
    leaders = {corner: _leaders(contenders, base, corner, against[corner], compare) for corner in corners}
    traits = {name: values for name, values in _traits(contenders).items() if len(set(values)) > 1}
    rows = [
        Row(
            contender,
            contender is base,
            [
                Cell(contender.runs.get(corner), against[corner].get(contender.key), contender.key in leaders[corner])
                for corner in corners
            ],
            means.get(contender.key),
            [values[place] for values in traits.values()],
        )
        for place, contender in enumerate(contenders)
    ]
    return Table(corners, rows, list(traits))


def _traits(contenders: Sequence[Contender]) -> dict[str, list[str]]:
    """What a contender is beside its times, each at its worst corner: a value a contender, by the trait's name."""
    summaries = [[run.summary for run in contender.runs.values()] for contender in contenders]
    overlaps = [contender.first.overlap for contender in contenders]
    return {
        "Balance": [number(max(s.expert_imbalance for s in each)) for each in summaries],
        "Dropped": [percent(most) if (most := max(s.drop_rate for s in each)) else MISSING for each in summaries],
        "Same experts": [MISSING if overlap is None else percent(overlap) for overlap in overlaps],
    }


def _column(
    others: Sequence[Contender], base: Contender, corner: str, part: str, compare: Compare
) -> dict[str, Compared]:
    """Each of ``others`` that has a run at ``corner``, by its key, corrected for their number."""
    here = [other for other in others if corner in other.runs]
    if corner not in base.runs:
        return {other.key: Compared(None, "the baseline has no run here") for other in here}
    found = {other.key: compare(base.runs[corner], other.runs[corner], part) for other in here}
    return _corrected(found)


def _corrected(found: Mapping[str, Compared]) -> dict[str, Compared]:
    compared = {key: one.found for key, one in found.items() if one.found}
    corrected = dict(zip(compared, holm(list(compared.values())), strict=True))
    return {key: one._replace(found=corrected.get(key)) for key, one in found.items()}


def _means(
    others: Sequence[Contender], corners: Sequence[str], against: Mapping[str, Mapping[str, Compared]]
) -> list[Compared | None]:
    """Of each of ``others`` over the corners where it has a ratio; None with fewer than two of them."""
    found: dict[str, Compared] = {}
    for other in others:
        columns = (against[corner].get(other.key) for corner in corners)
        ratios = [column.found for column in columns if column and column.found]
        if len(ratios) > 1:
            found[other.key] = Compared(geometric_mean(ratios))
    corrected = _corrected(found)
    return [corrected.get(other.key) for other in others]


def _leaders(
    contenders: Sequence[Contender], base: Contender, corner: str, against: Mapping[str, Compared], compare: Compare
) -> set[str]:
    """Keys of those that nobody beats for certain: the fastest by its ratio, and whoever can't be told from it."""
    ratios = {key: one.found.ratio for key, one in against.items() if one.found and one.found.ci95}
    if not ratios:
        return set()
    ratios[base.key] = 1.0
    runs = {contender.key: contender.runs[corner] for contender in contenders if contender.key in ratios}
    first = min(ratios, key=lambda key: ratios[key])
    near = [key for key in ratios if key != first and ratios[key] < NEAR * ratios[first]]
    return {first, *(key for key in near if compare(runs[first], runs[key], STEP).verdict != "slower")}


class PartRow(NamedTuple):
    """A contender at one corner, part by part; None of the baseline, whose times stand by themselves."""

    contender: Contender
    run: Measured
    is_base: bool
    parts: list[Compared | None]


@dataclass(frozen=True)
class Parts:
    """What of one corner every run has: the whole step, the stages and the latencies."""

    names: list[str]
    rows: list[PartRow]


def parts(contenders: Sequence[Contender], base: Contender, corner: str, compare: Compare = compare) -> Parts | None:
    """Every part of every contender at ``corner`` against that of ``base``; None where the baseline has no run there or
    shares no stage with any other."""
    here = [contender for contender in contenders if corner in contender.runs]
    others = [contender for contender in here if contender is not base]
    if corner not in base.runs:
        return None
    ours = base.runs[corner]
    stages = [stage for stage in ours.stages if any(stage in other.runs[corner].parts for other in others)]
    if not stages:
        return None
    names = [STEP, *stages, *(metric for metric in METRICS if ours.requests.get(metric))]
    columns = [_column(others, base, corner, name, compare) for name in names]
    rows = [
        PartRow(contender, contender.runs[corner], contender is base, [c.get(contender.key) for c in columns])
        for contender in here
    ]
    return Parts(names, rows)


def contenders(runs: Sequence[Measured]) -> list[Contender]:
    """``runs`` by their experiment and variant, which names them, each at its corner."""
    corners = corner_names(runs)
    grouped: dict[tuple[int, str], dict[str, Measured]] = {}
    for run in runs:
        grouped.setdefault((run.experiment, run.variant), {})[corners[run.schedule]] = run
    return [
        Contender(str(min(run.id for run in found.values())), variant, found) for (_, variant), found in grouped.items()
    ]


def corner_names(runs: Sequence[Measured]) -> dict[str, str]:
    """The name of every schedule: its condition, and what tells it from another of the same name."""
    conditions: dict[str, Measured] = {}
    for run in runs:
        conditions.setdefault(run.schedule, run)
    alike: dict[str, list[Measured]] = {}
    for run in conditions.values():
        alike.setdefault(run.condition, []).append(run)
    names = {}
    for condition, found in alike.items():
        fields = [flat(run.spec.workload.model_dump(exclude={"limits"})) for run in found]
        differing = [name for name in fields[0] if len({str(each[name]) for each in fields}) > 1]
        for run, values in zip(found, fields, strict=True):
            names[run.schedule] = ", ".join([condition, *(f"{name} {label(values[name])}" for name in differing)])
    return names
