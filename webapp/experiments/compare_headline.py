"""What came out of a comparison, in one sentence (pure)."""

from __future__ import annotations

from collections import Counter

from bench_worker.strategies import STRATEGIES
from webapp.experiments.compare import UNCHANGED
from webapp.experiments.compare_table import Contender, Row, Table


def headline(table: Table) -> str | None:
    """Who is fastest where, by how much, and whether that is certain. None where there are too few samples to tell."""
    leaders = {corner: found for corner in table.corners if (found := table.leaders(corner))}
    if not leaders:
        return None
    base, others = table.base, table.others
    told = [(row, cell.step) for row in others for cell in row.cells if cell.step and cell.step.found]
    if all(step.verdict == UNCHANGED for _, step in told):
        same = dict.fromkeys(row.contender.name for row, _ in told)
        name = f"{next(iter(same))} takes" if len(same) == 1 else "all others take"
        return f"No significant change {_where(len(leaders), len(leaders))}: {name} as long as {base.contender.name}."
    alone = Counter(found[0].key for found in leaders.values() if len(found) == 1)
    if not alone:
        level = next(iter(leaders.values()))
        names = ", ".join(_name(contender) for contender in level[:-1])
        return f"No one is fastest alone: {names} and {_name(level[-1])} are level at {next(iter(leaders))}."
    winners = [row for row in table.rows if alone[row.contender.key]]
    row = max(winners, key=lambda winner: (alone[winner.contender.key], -_ratio(winner)))
    sentence = f"{_name(row.contender)} is fastest {_where(alone[row.contender.key], len(leaders))}"
    if row.is_base:
        only = others[0] if len(others) == 1 else None
        return f"{sentence}{f': {only.contender.name} is {_against(only, base)}' if only else ''}."
    colon = ":" if _ratio(row) < 1 else "; over all corners it is"
    return f"{sentence}{colon} {_against(row, base)}.{_own_experts(row.contender)}"


def _ratio(row: Row) -> float:
    """Over all corners, or at the only one; 1 of the baseline."""
    overall = row.mean or next((cell.step for cell in row.cells if cell.step), None)
    return overall.found.ratio if overall and overall.found else 1.0


def _against(row: Row, base: Row) -> str:
    """Over all corners, or at the only one."""
    step = next(cell.step for cell in row.cells if cell.step)
    return f"{(row.mean or step).words} against {base.contender.name}{' (geometric mean)' if row.mean else ''}"


def _where(wins: int, of: int) -> str:
    if of == 1:
        return "at the one corner measured"
    return "at every corner" if wins == of else f"at {wins} of {of} corners"


def _name(contender: Contender) -> str:
    causal = STRATEGIES[contender.first.spec.routing.strategy].causal
    return contender.name if causal else f"{contender.name} (non-causal)"


def _own_experts(contender: Contender) -> str:
    overlap = contender.first.overlap
    return " Its experts differ from the model's own." if overlap is not None and overlap < 1 else ""
