"""What every chart shares: a stage's colour, and how a configuration is told to format its numbers.

A chart is a pure function from rows to a Chart.js configuration. The configuration is plain JSON; ``charts.js`` adds
what JSON can't carry: a string ``var(--token)`` becomes that token's colour, ``hatched var(--token)`` a hatched
pattern of it, and ``options.unit`` formats the value axis and the tooltips as `formatting` does, ``options.xUnit`` the
other axis where that one measures, too. ``options.pointLabels``, the colour behind them, writes each point's ``label``
beside it; its ``title`` stands over its tooltip. A bar from one value to another tells how long it is.
"""

from __future__ import annotations

from typing import Any, Literal

Unit = Literal["us", "ms", "bytes", "percent", "count", "number"]

#: Stages whose surface is hatched: no work is done in them.
HATCHED = frozenset({"idle"})

#: Colours and dashes of lines: 5 · 3 are told apart.
_COLOURS = 5
_DASHES: tuple[list[int], ...] = ([], [6, 3], [2, 2])


def token(name: str) -> str:
    """The colour token ``name`` of ``tokens.css``."""
    return f"var(--{name})"


def stage_colour(stage: str) -> str:
    """The one colour of a stage; a sub-stage (``route.gate``) has its stage's."""
    name = stage.split(".")[0]
    colour = token(f"stage-{name}")
    return f"hatched {colour}" if name in HATCHED else colour


def line_style(place: int) -> dict[str, Any]:
    """Of the line at ``place`` among those of a chart: how a dataset is told from the others."""
    colour = token(f"series-{place % _COLOURS + 1}")
    dash = _DASHES[place // _COLOURS % len(_DASHES)]
    return {"borderColor": colour, "backgroundColor": colour, "borderDash": dash, "borderWidth": 2}
