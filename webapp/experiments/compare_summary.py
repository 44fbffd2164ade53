"""A comparison as Markdown for a message, and as a flat table for a file: what the page shows, no more (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from webapp.experiments.compare import STEP, Compared, Measured
from webapp.experiments.compare_page import Page, median_us
from webapp.experiments.compare_table import Cell, Contender
from webapp.ui.formatting import MISSING, duration_us


def markdown(page: Page, title: str, address: str) -> str:
    """The answer, what the machine has to do with it, what differs, and the table of step times. ``address``: where
    the page is found."""
    several = len(page.table.corners) > 1
    head = ["", *page.table.corners, *(["geometric mean"] if several else [])]
    lines = [f"**{title}**", "", page.sentence, *(["", page.around] if page.around else [])]
    lines += ["", f"What differs: {page.differs.sentence}"]
    if len(page.differs.all) > 1:
        lines += ["", *(f"- {found.words}" for found in page.differs.all)]
    lines += ["", _row(head), _row(["---", *["---:"] * (len(head) - 1)])]
    for row in page.table.rows:
        name = f"{row.contender.name} (baseline)" if row.is_base else row.contender.name
        mean = [row.mean.words if row.mean else ""] if several else []
        lines.append(_row([name, *(_cell(cell) for cell in row.cells), *mean]))
    paired = "unpaired, so intervals are wider" if page.unpaired else "paired step by step"
    lines += ["", f"Median step; change with its 95% interval, {paired}. {address}"]
    return "\n".join(lines)


def _cell(cell: Cell) -> str:
    if cell.run is None:
        return MISSING
    return duration_us(median_us(cell.run, STEP)) if cell.step is None else cell.step.words


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in cells)} |"


#: Columns of `rows`, with their units.
COLUMNS = (
    "corner", "contender", "experiment", "run", "is_baseline", "part", "median_us", "ratio_to_baseline", "ratio_low_95",
    "ratio_high_95", "p_value", "samples", "is_paired", "verdict", "note",
)  # fmt: skip


def rows(page: Page) -> Iterator[dict[str, Any]]:
    """The step times of every corner, and the parts of the chosen one, a row each with `COLUMNS`."""
    for place, corner in enumerate(page.table.corners):
        for row in page.table.rows:
            if (run := row.cells[place].run) is not None:
                yield _flat(corner, row.contender, run, row.is_base, STEP, row.cells[place].step)
    if page.parts is None:
        return
    for part_row in page.parts.rows:
        for name, found in zip(page.parts.names, part_row.parts, strict=True):
            if name != STEP:
                yield _flat(page.corner, part_row.contender, part_row.run, part_row.is_base, name, found)


def _flat(
    corner: str, contender: Contender, run: Measured, is_base: bool, part: str, compared: Compared | None
) -> dict[str, Any]:
    found = compared.found if compared else None
    low, high = (found.ci95 if found else None) or (None, None)
    values = (
        corner, contender.name, run.experiment, run.id, is_base, part.removesuffix("_ms"),
        median_us(run, part), found and found.ratio, low, high, found and found.p_value,
        found and found.samples, found and found.paired, found and found.verdict, compared.reason if compared else "",
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))
