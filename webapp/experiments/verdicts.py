"""Where the time of an experiment goes, for its page (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench_worker.advice import NAMES
from bench_worker.findings import Verdict, Verdicts

#: Names of the costs, which are the columns of a table of shares.
COSTS = list(NAMES.values())


class Row(NamedTuple):
    """Of a variant at a corner, or of one where only that differs, the other being empty. ``shares``: in the order of
    `COSTS`; ``dominant``: the name of the largest, or that it is undecided."""

    name: str
    corner: str
    shares: list[float]
    dominant: str


@dataclass(frozen=True)
class Section:
    """``rows``: the runs of the ``first`` variant, by their corners; ``others``: those of the other variants."""

    found: Verdicts
    first: str
    rows: list[Row]
    others: list[Row]


def section(result: Mapping[str, Any], runs: Iterable[tuple[str, str]]) -> Section | None:
    """``result``: the document without its runs; ``runs``: variant and condition of each, in order. None where it makes
    no verdict."""
    if not result.get("verdict"):
        return None
    found = Verdicts.model_validate(result["verdict"])
    names = {f"{variant} at {condition}": (variant, condition) for variant, condition in runs}
    told = [(*names[name], found.runs[name]) for name in names if name in found.runs]
    first = told[0][0]
    return Section(
        found,
        first,
        [row(condition, "", of) for variant, condition, of in told if variant == first],
        [row(variant, condition, of) for variant, condition, of in told if variant != first],
    )


def row(name: str, corner: str, verdict: Verdict) -> Row:
    dominant = verdict.dominant
    shown = "undecided" if dominant == "undecided" else NAMES[dominant]
    return Row(name, corner, [verdict.shares[cost] for cost in NAMES], shown)
