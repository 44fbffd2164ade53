"""What routing came to, variant by variant: the numbers, the histograms and the load of the experts (pure).

Shapes: ``E`` experts, ``L`` executed layers, ``G`` stretches of steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bench_worker.result import RoutingOutcome, Summary
from bench_worker.spec import label
from bench_worker.strategies import STRATEGIES
from webapp.ui import heat
from webapp.ui.formatting import percent
from webapp.ui.heat import Map
from webapp.ui.pictures import Bar

#: What `section` reads of a run.
READ = ("variant", "condition", "spec", "summary", "routing", "expert_assignments")
#: Numbers of experts a token that have a bar each; above, one for each power of two.
SINGLE = 16
#: So many rows of a section are drawn; all of them stand in its tables.
DRAWN = 8


class Bin(NamedTuple):
    """What counts from ``low`` to ``high``, both included, and its share of everything."""

    low: int
    high: int
    share: float

    @property
    def name(self) -> str:
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,}–{self.high:,}"


@dataclass(frozen=True)
class Routed:
    """What the routing of one run came to. ``name`` is its variant, or its corner where there is one variant."""

    name: str
    outcome: RoutingOutcome
    summary: Summary
    num_ranks: int
    maps: list[Map]
    #: Assignments [E] of each expert, over all steps and layers.
    load: list[int]
    per_token: list[Bin]
    rows: list[Bin]

    @property
    def experts_a_token(self) -> float:
        counts = self.outcome.experts_per_token
        return sum(experts * tokens for experts, tokens in enumerate(counts)) / max(sum(counts), 1)

    @property
    def active_experts(self) -> float:
        """Experts that compute at least one row, in the mean step and layer."""
        return len(self.load) * (1 - self.rows[0].share)

    @property
    def per_token_bars(self) -> list[Bar]:
        last = self.per_token[-1].high
        return [
            Bar(found.share, str(found.high) if found.high in (0, 4, 8, 12, last) else "", _words(found, "expert"))
            for found in self.per_token
        ]

    @property
    def row_bars(self) -> list[Bar]:
        every = 2 if len(self.rows) > 9 else 1  # so many have room for a tick each
        return [
            Bar(
                found.share, _short(found.low) if place == 0 or place % every == every - 1 else "", _words(found, "row")
            )
            for place, found in enumerate(self.rows)
        ]


@dataclass(frozen=True)
class Section:
    """``corners`` are offered where variants are compared at one of them, ``chosen``."""

    rows: list[Routed]
    corners: list[str]
    chosen: str

    @property
    def drawn(self) -> list[Routed]:
        return self.rows[:DRAWN]

    @property
    def experts(self) -> list[tuple[int, list[int]]]:
        """The load of each expert: its number, and its assignments in each row of the section."""
        return [
            (expert, list(loads)) for expert, loads in enumerate(zip(*(row.load for row in self.rows), strict=True))
        ]

    @property
    def tables(self) -> list[tuple[Table, str]]:
        """The numbers of the histograms, each with its caption."""
        return [
            (_table([(row.name, row.per_token) for row in self.rows]), "Tokens by how many experts they get"),
            (
                _table([(row.name, row.rows) for row in self.rows]),
                "Experts, once a step and layer, by how many rows they compute",
            ),
        ]


class Table(NamedTuple):
    """Shares by row and bin; bins that are empty in every row are left out."""

    bins: list[str]
    rows: list[tuple[str, list[float]]]


def non_causal(document: Mapping[str, Any]) -> frozenset[str]:
    """Names of the variants of an experiment whose routing looks at later tokens."""
    usual, vary = document["base"]["routing"]["strategy"], document["vary"]
    if vary is None:
        strategies = {"base": usual}
    elif vary["field"] == "routing.strategy":
        strategies = {label(value): value for value in vary["values"]}
    elif vary["field"] == "routing":
        strategies = {label(value): value.get("strategy", "token_choice") for value in vary["values"]}
    else:
        strategies = dict.fromkeys(map(label, vary["values"]), usual)
    return frozenset(name for name, strategy in strategies.items() if not STRATEGIES[strategy].causal)


def section(runs: Iterable[Mapping[str, Any]], corners: Sequence[str], chosen: str, by_corner: bool) -> Section | None:
    """The section for ``runs`` with `READ`, of the ``chosen`` corner or, ``by_corner``, of one variant at all of them;
    None where none of them was measured with its routing."""
    found = [(run, RoutingOutcome.model_validate(run["routing"])) for run in runs if run["routing"]]
    if not found:
        return None
    # the same bins for all, so that bars of the same place mean the same
    most_experts = max(len(outcome.experts_per_token) for _, outcome in found) - 1
    num_bins = max(len(outcome.rows_per_expert) for _, outcome in found)
    rows = [
        Routed(
            name=run["condition"] if by_corner else run["variant"],
            outcome=outcome,
            summary=Summary.model_validate(run["summary"]),
            num_ranks=run["spec"]["parallel"]["layout"]["tp"] * run["spec"]["parallel"]["layout"]["dp"],
            maps=_maps(run, outcome),
            load=np.sum(run["expert_assignments"], axis=0).tolist(),
            per_token=per_token(outcome.experts_per_token, most_experts),
            rows=rows_per_expert(outcome.rows_per_expert, num_bins),
        )
        for run, outcome in found
    ]
    return Section(rows, [] if by_corner else list(corners), chosen)


def per_token(counts: Sequence[int], most: int) -> list[Bin]:
    """Bins of how many experts a token got, up to ``most``: one a number to `SINGLE`, then one a power of two."""
    highs = list(range(min(most, SINGLE) + 1))
    while highs[-1] < most:
        highs.append(min(2 * highs[-1], most))
    lows = [0, *(high + 1 for high in highs[:-1])]
    total = max(sum(counts), 1)
    return [Bin(low, high, sum(counts[low : high + 1]) / total) for low, high in zip(lows, highs, strict=True)]


def rows_per_expert(counts: Sequence[int], num_bins: int) -> list[Bin]:
    """The bins of `RoutingOutcome.rows_per_expert`, as many as ``num_bins``: none, 1, 2 to 3, 4 to 7, …"""
    total = max(sum(counts), 1)
    padded = [*counts, *[0] * (num_bins - len(counts))]
    return [Bin(2**place // 2, max(2**place - 1, 0), count / total) for place, count in enumerate(padded)]


def _maps(run: Mapping[str, Any], outcome: RoutingOutcome) -> list[Map]:
    """By step, and by layer where several were executed."""
    where = f"{run['variant']} at {run['condition']}"
    over_time, by_layer = np.array(outcome.expert_assignments_over_time), np.array(run["expert_assignments"])
    steps = run["summary"]["step_us"]["samples"]
    maps = [heat.map_of(over_time, "step", steps, outcome.steps_per_group, where)]
    return [*maps, heat.map_of(by_layer, "layer", len(by_layer), 1, where)] if len(by_layer) > 1 else maps


def _words(found: Bin, noun: str) -> str:
    """What a bar of a histogram says: ``12% of tokens get 8 experts``."""
    verb = {"expert": "of tokens get", "row": "of experts compute"}[noun]
    return f"{percent(found.share)} {verb} {found.name} {noun}{'' if found.low == found.high == 1 else 's'}"


def _short(count: int) -> str:
    return f"{count // 1024}k" if count >= 1024 else str(count)


def _table(rows: Sequence[tuple[str, Sequence[Bin]]]) -> Table:
    """``rows`` with the same bins each."""
    filled = [
        place for place, bins in enumerate(zip(*(row for _, row in rows), strict=True)) if any(b.share for b in bins)
    ]
    names = [rows[0][1][place].name for place in filled]
    return Table(names, [(name, [row[place].share for place in filled]) for name, row in rows])
