"""What came out of a comparison, in one sentence (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from bench_worker.strategies import STRATEGIES
from webapp.experiments.compare import STEP, UNCHANGED, Compared
from webapp.experiments.compare_table import Contender, Row, Table
from webapp.ui.formatting import change

#: All steps together that take so many times as long, or as short, contradict a median step that does not.
APART = 1.1


def headline(table: Table) -> str | None:
    """Who is fastest where, by how much, and whether that is certain; and whose steps take longer all together. None
    where there are too few samples to tell."""
    said = _fastest(table)
    return said and said + "".join(_together(row, table) for row in table.others)


def _fastest(table: Table) -> str | None:
    leaders = {corner: found for corner in table.corners if (found := table.leaders(corner))}
    if not leaders:
        return None
    base, others, of = table.base, table.others, len(table.corners)
    doubt = _doubt(table, [place for place, corner in enumerate(table.corners) if corner not in leaders])
    told = [(row, cell.step) for row in others for cell in row.cells if cell.step and cell.step.found]
    if all(step.verdict == UNCHANGED for _, step in told):
        same = dict.fromkeys(row.contender.name for row, _ in told)
        name = f"{next(iter(same))} takes" if len(same) == 1 else "all others take"
        return f"No significant change {where(len(leaders), of)}: {name} as long as {base.contender.name}.{doubt}"
    alone = Counter(found[0].key for found in leaders.values() if len(found) == 1)
    if not alone:
        level = next(iter(leaders.values()))
        names = ", ".join(_name(contender) for contender in level[:-1])
        return f"No one is fastest alone: {names} and {_name(level[-1])} are level at {next(iter(leaders))}.{doubt}"
    winners = [row for row in table.rows if alone[row.contender.key]]
    row = max(winners, key=lambda winner: (alone[winner.contender.key], -_ratio(winner)))
    others_won = _elsewhere(leaders, row.contender)
    sentence = f"{_name(row.contender)} is fastest {where(alone[row.contender.key], of)}"
    if row.is_base:
        return f"{sentence}{_next(others, base, everywhere=alone[row.contender.key] == of)}.{others_won}{doubt}"
    colon = ":" if _ratio(row) < 1 else "; over all corners it is"
    return f"{sentence}{colon} {_against(row, base)}.{_own_experts(row.contender)}{others_won}{doubt}"


def _together(row: Row, table: Table) -> str:
    """Where all steps of a contender take longer than the baseline's, or less, though its median step doesn't: a few
    long steps, such as those of prompts, outweigh many short ones."""
    found: dict[str, list[str]] = {"longer": [], "less": []}
    for corner, cell in zip(table.corners, row.cells, strict=True):
        if not (cell.run and cell.step and cell.step.found and cell.step.found.ci95 and cell.step.found.paired):
            continue
        own, base = cell.run.parts[STEP], table.base.contender.runs[corner].parts[STEP]
        if own.size != base.size:
            continue
        for how, excess, least, agrees in (
            ("longer", own - base, base, "slower"),
            ("less", base - own, own, "faster"),
        ):
            of_several = excess.sum() - excess.max()  # without the step that says so most
            if cell.step.css != agrees and of_several >= (APART - 1) * least.sum():
                found[how].append(f"{change(float(own.sum() / base.sum()))} at {corner}")
    told = [f"takes {how}: {', '.join(corners)}" for how, corners in found.items() if corners]
    return "".join(f" But all steps together, {row.contender.name} {what}." for what in told)


def _doubt(table: Table, places: list[int]) -> str:
    """Why nobody is said to be fastest at these corners."""
    steps = {place: [row.cells[place].step for row in table.others] for place in places}
    few = [place for place in places if any(step and step.found for step in steps[place])]
    reasons = {"Too few samples to tell": few, "Nothing to compare": [place for place in places if place not in few]}
    return "".join(
        f" {reason} at {', '.join(table.corners[place] for place in those)}."
        for reason, those in reasons.items()
        if those
    )


def _elsewhere(leaders: Mapping[str, list[Contender]], first: Contender) -> str:
    """Who else is fastest alone, and where."""
    won: dict[str, list[str]] = {}
    for corner, found in leaders.items():
        if len(found) == 1 and found[0] is not first:
            won.setdefault(_name(found[0]), []).append(corner)
    return "".join(f" {name} is fastest at {', '.join(corners)}." for name, corners in won.items())


def _next(others: list[Row], base: Row, *, everywhere: bool) -> str:
    """By how much the baseline leads: what the only other takes or, where nobody beats it at any corner, the next."""
    told = [row for row in others if _told(row)]
    if len(others) == 1:
        return f": {others[0].contender.name} is {_against(others[0], base)}"
    if not everywhere or not told:
        return ""
    second = min(told, key=_ratio)
    return f": {second.contender.name} is next, {_against(second, base)}"


def _told(row: Row) -> list[Compared]:
    """Its changes that have an interval."""
    return [cell.step for cell in row.cells if cell.step and cell.step.found and cell.step.found.ci95]


def _ratio(row: Row) -> float:
    """Over all corners, or at the only one; 1 of the baseline."""
    overall = row.mean or next((cell.step for cell in row.cells if cell.step), None)
    return overall.found.ratio if overall and overall.found else 1.0


def _against(row: Row, base: Row) -> str:
    """Over all corners or, where some have too few samples for that, the range over those that have enough."""
    name = base.contender.name
    told = _told(row)
    if row.mean is None or len(told) == 1:
        return f"{told[0].words} against {name}"
    if row.mean.found and row.mean.found.ci95:
        return f"{row.mean.words} against {name} (geometric mean)"
    ratios = [step.found.ratio for step in told if step.found]
    return f"{change(max(ratios))} to {change(min(ratios))} against {name}"


def where(wins: int, of: int) -> str:
    if of == 1:
        return "at the one corner measured"
    return "at every corner" if wins == of else f"at {wins} of {of} corners"


def _name(contender: Contender) -> str:
    causal = STRATEGIES[contender.first.spec.routing.strategy].causal
    return contender.name if causal else f"{contender.name} (non-causal)"


def _own_experts(contender: Contender) -> str:
    overlap = contender.first.overlap
    return " Its experts differ from the model's own." if overlap is not None and overlap < 1 else ""
