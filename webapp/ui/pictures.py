"""Small pictures as SVG (pure): they need no script, take their colours from classes, and print.

What each shows stands in its ``label``, for readers who do not see it; the page has the numbers in a table as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

#: Heights in pixels; a heat map's rows are whole pixels high, so that all look alike.
HEAT_HEIGHT = 128
BARS_WIDTH, BARS_HEIGHT = 220, 128
#: The width is in units of the picture, which stretches.
STACK_WIDTH, STACK_HEIGHT = 1000, 28
SPARK_WIDTH, SPARK_HEIGHT, _DOT = 140, 28, 3
#: Above the bars stands the largest share, below them their ticks.
_TOP, _BOTTOM = 16, 14


class Bar(NamedTuple):
    """``share`` of 1; ``tick`` below the bar, empty for none; ``words`` say all of it on hover."""

    share: float
    tick: str
    words: str


class Piece(NamedTuple):
    """``amount`` of a stacked bar, in the colour of ``name``; ``words`` say it on hover."""

    name: str
    amount: float
    words: str


def stacked(pieces: Sequence[Piece], limit: float | None, label: str) -> str:
    """One lying bar of ``pieces``, as wide as its place, against ``limit``: a mark where that ends. The wider of the
    two fills the picture."""
    total = sum(piece.amount for piece in pieces)
    width = max(total, limit or 0) or 1
    parts, at = [], 0.0
    if limit is not None:
        parts.append(f'<rect class="device" width="{_of(limit, width)}" height="{STACK_HEIGHT}"/>')
    for piece in pieces:
        parts.append(
            f'<rect data-part="{escape(piece.name)}" x="{_of(at, width)}" width="{_of(piece.amount, width)}" '
            f'height="{STACK_HEIGHT}"><title>{escape(piece.words)}</title></rect>'
        )
        at += piece.amount
    if limit is not None:
        parts.append(f'<path class="mark" d="M{_of(limit, width)} 0v{STACK_HEIGHT}"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="memory-bar" role="img" aria-label="{escape(label)}" '
        f'width="100%" height="{STACK_HEIGHT}" viewBox="0 0 {STACK_WIDTH} {STACK_HEIGHT}" preserveAspectRatio="none">'
        f"{''.join(parts)}</svg>"
    )


def _of(amount: float, width: float) -> float:
    return round(STACK_WIDTH * amount / width, 2)


def heatmap(levels: np.ndarray, label: str) -> str:
    """``levels`` int [rows, columns]: a cell of level 0 stays blank, others have the class ``heat-<level>``.

    The picture is as wide as its place. Equal neighbours of a row are drawn as one stroke, a path for each level.
    """
    rows, columns = levels.shape
    paths: dict[int, list[str]] = {}
    for y, row in enumerate(levels):
        starts = np.flatnonzero(np.diff(row, prepend=-1)).tolist()
        for start, end in zip(starts, [*starts[1:], columns], strict=True):
            if row[start]:
                paths.setdefault(int(row[start]), []).append(f"M{start} {y}h{end - start}")
    drawn = "".join(f'<path class="heat-{level}" d="{"".join(paths[level])}"/>' for level in sorted(paths))
    height = rows * max(1, round(HEAT_HEIGHT / rows))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="heatmap" role="img" aria-label="{escape(label)}" width="100%" '
        f'height="{height}" viewBox="0 -0.5 {columns} {rows}" preserveAspectRatio="none" shape-rendering="crispEdges">'
        f"{drawn}</svg>"
    )


def histogram(bars: Sequence[Bar], label: str) -> str:
    """Upright bars, the tallest as high as the picture and with its share written above."""
    shares = [bar.share for bar in bars]
    most = max(shares, default=0.0)
    step, room = BARS_WIDTH / max(len(bars), 1), BARS_HEIGHT - _TOP - _BOTTOM
    parts = []
    for place, bar in enumerate(bars):
        height = room * bar.share / most if most else 0.0
        x, middle = round(place * step, 1), round((place + 0.5) * step, 1)
        # what can be pointed at is as high as the picture
        parts.append(
            f"<g><title>{escape(bar.words)}</title>"
            f'<rect class="reach" x="{x}" width="{step:.1f}" height="{BARS_HEIGHT}"/>'
            f'<rect x="{x}" y="{_TOP + room - height:.1f}" width="{step - 1:.1f}" height="{height:.1f}"/>'
            f'<text x="{middle}" y="{BARS_HEIGHT - 3}">{escape(bar.tick)}</text></g>'
        )
    if most:
        middle = round((shares.index(most) + 0.5) * step, 1)
        at = min(max(middle, 16), BARS_WIDTH - 16)  # so that it does not leave the picture
        parts.append(f'<text class="most" x="{at}" y="{_TOP - 5}">{most:.0%}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="histogram" role="img" aria-label="{escape(label)}" '
        f'width="{BARS_WIDTH}" height="{BARS_HEIGHT}" viewBox="0 0 {BARS_WIDTH} {BARS_HEIGHT}">'
        f'{"".join(parts)}<path class="axis" d="M0 {_TOP + room + 0.5}h{BARS_WIDTH}"/></svg>'
    )


def sparkline(values: Sequence[float], marks: Sequence[int], label: str) -> str:
    """A small line of ``values``, the lowest at the bottom, with a dot at each index of ``marks`` and at the end."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    across = (SPARK_WIDTH - 2 * _DOT) / max(len(values) - 1, 1)
    up = (SPARK_HEIGHT - 2 * _DOT) / ((high - low) or 1)
    places = [
        (round(_DOT + index * across, 1), round(SPARK_HEIGHT - _DOT - (value - low) * up, 1))
        for index, value in enumerate(values)
    ]
    line = " ".join(f"{x},{y}" for x, y in places)
    dots = [f'<circle class="change" cx="{places[at][0]}" cy="{places[at][1]}" r="{_DOT}"/>' for at in marks]
    last = [f'<circle cx="{x}" cy="{y}" r="1.5"/>' for x, y in places[-1:]]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="sparkline" role="img" aria-label="{escape(label)}" '
        f'width="{SPARK_WIDTH}" height="{SPARK_HEIGHT}" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}">'
        f'<polyline points="{line}"/>{"".join(last + dots)}</svg>'
    )
