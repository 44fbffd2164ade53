"""What a comparison shows: on a page of its own for any runs, and on that of the experiment whose variants it compares.

Pure, but for what it remembers, and for the runs of an experiment, which it reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bench_worker.result import STAGES
from bench_worker.strategies import STRATEGIES
from webapp.experiments import compare, compare_around, compare_charts, compare_read, present, verdicts
from webapp.experiments.compare import Compared, Measured
from webapp.experiments.compare_differs import Differs, differs
from webapp.experiments.compare_headline import headline
from webapp.experiments.compare_read import Refused
from webapp.experiments.compare_table import Contender, Parts, Table, contenders, parts, table
from webapp.experiments.models import Experiment
from webapp.experiments.present import Bars, Seen

#: What the latencies are called in a table.
METRIC_NAMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "End to end"}
#: Comparisons that a process remembers: runs never change, and a bootstrap takes milliseconds.
REMEMBERED = 50_000
#: Rows of the table of stages on one page; every part of a row is a bootstrap.
PART_ROWS = 10


class _Memory:
    """The latest comparisons, by runs and part."""

    def __init__(self, most: int) -> None:
        self._found: OrderedDict[tuple[int, int, str], Compared] = OrderedDict()
        self._most = most

    def __call__(self, base: Measured, other: Measured, part: str) -> Compared:
        key = base.id, other.id, part
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = compare.compare(base, other, part)
            while len(self._found) > self._most:
                self._found.popitem(last=False)
        return found

    def forget(self) -> None:
        self._found.clear()


#: As `compare.compare`, of stored runs.
remembered = _Memory(REMEMBERED)


def is_unpaired(table: Table) -> bool:
    """Whether any of its ratios is of runs that did not run interleaved."""
    return any(cell.step.found and not cell.step.found.paired for row in table.rows for cell in row.cells if cell.step)


class PartName(NamedTuple):
    """A column of the table of parts; ``stage`` is empty for what is none."""

    name: str
    stage: str


class PartCells(NamedTuple):
    """A row of it: each part's median in µs and what it is against the baseline's."""

    contender: Contender
    is_base: bool
    samples: int
    cells: list[tuple[float | None, Compared | None]]


class Fact(NamedTuple):
    """What a contender needs and yields at the chosen corner."""

    contender: Contender
    run: Measured


@dataclass(frozen=True)
class Page:
    """Everything on the page. ``corner``: whose stages, steps and roofline are shown."""

    table: Table
    differs: Differs
    corner: str
    parts: Parts | None
    facts: list[Fact]
    bars: list[Bars]
    intervals: list[compare_charts.Chart]
    differences: compare_charts.Chart | None
    roofline: compare_charts.Roofline | None
    contenders: list[Contender]
    runs: list[Measured]

    @property
    def base(self) -> Contender:
        return self.table.base.contender

    @property
    def sentence(self) -> str:
        """The answer, or why there is none."""
        if found := headline(self.table):
            return found
        if not self.table.others:
            return "One variant at several corners: their batches differ, so no ratio of step times can be given."
        steps = [cell.step for row in self.table.others for cell in row.cells if cell.step]
        if any(step.found for step in steps):
            return "Too few steps to say what is faster: the table has the medians."
        reasons = dict.fromkeys(step.reason for step in steps if step.reason)
        return f"No ratio of step times can be given: {'; '.join(reasons)}."

    @property
    def shares(self) -> list[verdicts.Row]:
        """Where the time of each goes, of those whose results tell."""
        return [verdicts.row(fact.contender.name, "", fact.run.verdict) for fact in self.facts if fact.run.verdict]

    @property
    def around(self) -> str | None:
        """What the machine has to do with the ratios."""
        return compare_around.sentence(self.table)

    @property
    def unpaired(self) -> bool:
        return is_unpaired(self.table)

    @property
    def non_causal(self) -> list[str]:
        return [c.name for c in self.contenders if not STRATEGIES[c.first.spec.routing.strategy].causal]

    @property
    def part_names(self) -> list[PartName]:
        names = self.parts.names if self.parts else []
        return [PartName(METRIC_NAMES.get(name, name), name if name in STAGES else "") for name in names]

    @property
    def part_rows(self) -> list[PartCells]:
        return (
            [
                PartCells(
                    row.contender,
                    row.is_base,
                    row.run.summary.step_us.samples,
                    [
                        (median_us(row.run, name), found)
                        for name, found in zip(self.parts.names, row.parts, strict=True)
                    ],
                )
                for row in self.parts.rows
            ]
            if self.parts
            else []
        )

    @property
    def left_out(self) -> int:
        """Contenders that the table of stages has no room for."""
        return len(self.facts) - len(self.parts.rows) if self.parts else 0


def page(runs: Sequence[Measured], base: int | None = None, corner: str = "") -> Page:
    """``base``: the number of a run of the baseline, the first where it is None; ``corner``: its name, the last of the
    baseline where there is none of that name. Raises `Refused`."""
    against = _base(runs, base)
    found = named(runs, against)
    chosen = next(contender for contender in found if against in contender.runs.values())
    compared = table(found, chosen, remembered)
    at = corner if corner in compared.corners else list(chosen.runs)[-1]
    here = [contender for contender in found if at in contender.runs]
    some = [chosen, *[contender for contender in here if contender is not chosen][: PART_ROWS - 1]]
    stages = [set(contender.first.stages) for contender in found if contender is not chosen]
    if stages and not any(each & set(chosen.first.stages) for each in stages):
        raise Refused("runs: they have no stage in common, so there is nothing to compare.")
    return Page(
        table=compared,
        differs=differs(found, chosen),
        corner=at,
        parts=parts([c for c in found if c in some], chosen, at, remembered),
        facts=[Fact(contender, contender.runs[at]) for contender in here],
        bars=present.bars(
            [_seen(contender, corner, run) for corner in compared.corners for contender in found
             if (run := contender.runs.get(corner))],
            [c.name for c in found if not STRATEGIES[c.first.spec.routing.strategy].causal],
            base=chosen.name,
        ),
        intervals=compare_charts.intervals(compared),
        differences=compare_charts.differences(found, chosen, at),
        roofline=compare_charts.roofline(found, at),
        contenders=found,
        runs=list(runs),
    )  # fmt: skip


def of_experiment(row: Experiment, variants: Sequence[str], base: str) -> dict[str, Any]:
    """The comparison of an experiment's variants, for its page. ``base``: the number of a run of the baseline, which is
    the first timed variant where that names none; only then the answer is that of the experiment itself."""
    runs = compare_read.of_experiment(row.pk)
    found = contenders(runs)
    if not found:
        return {"baseline": ""}
    chosen = next((contender for contender in found if base == contender.key), found[0])
    compared = table(found, chosen, remembered)
    timed = {contender.name for contender in found}
    numbers = [run.id for run in runs]
    return {
        "table": compared,
        "baseline": chosen.name,
        "sentence": headline(compared) if chosen is not found[0] else None,
        "unpaired": is_unpaired(compared),
        "untimed": [name for name in variants if name not in timed],
        "runs_written": compare_read.written(numbers) if 1 < len(numbers) <= compare_read.MOST else None,
    }


def _base(runs: Sequence[Measured], base: int | None) -> Measured:
    if base is None:
        return runs[0]
    for run in runs:
        if run.id == base:
            return run
    known = ", ".join(str(run.id) for run in runs[:10])
    more = f" and {len(runs) - 10} more" if len(runs) > 10 else ""
    raise Refused(f"base: run {base} is not among the runs that are compared; it must be one of {known}{more}.")


def named(runs: Sequence[Measured], base: Measured) -> list[Contender]:
    """The contenders, named by the value of the one variable that differs, or else by their variant; of several
    experiments, with the number of theirs."""
    found = contenders(runs)
    several = len({run.experiment for run in runs}) > 1
    if not several:
        return found
    asked = differs(found, next(contender for contender in found if base in contender.runs.values())).asked
    values = asked[0].by_contender if len(asked) == 1 else [_variant(contender) for contender in found]
    return [
        Contender(contender.key, f"{value} #{contender.first.experiment}", contender.runs)
        for contender, value in zip(found, values, strict=True)
    ]


def _variant(contender: Contender) -> str:
    """``base`` is the name of the variant of an experiment that varies nothing."""
    return contender.first.title[:40] if contender.first.variant == "base" else contender.first.variant


def _seen(contender: Contender, corner: str, run: Measured) -> Seen:
    return Seen(contender.name, corner, "ok", run.summary, run.layer_scale, run.position, run.noise, run.origin)


def median_us(run: Measured, part: str) -> float | None:
    """The median of a part over the steps or requests, in µs; None where the run has no such part."""
    if part in run.parts:
        return float(np.median(run.parts[part]))
    values = [value for value in run.requests.get(part, ()) if value is not None]
    return float(np.median(values)) * 1000 if values else None
