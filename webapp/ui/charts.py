"""What every chart shares: a stage's colour, and how a configuration is told to format its numbers.

A chart is a pure function from rows to a Chart.js configuration. The configuration is plain JSON; ``charts.js`` adds
what JSON can't carry: a string ``var(--token)`` becomes that token's colour, ``hatched var(--token)`` a hatched
pattern of it, and ``options.unit`` formats the value axis and the tooltips as `formatting` does.
"""

from __future__ import annotations

from typing import Literal

Unit = Literal["us", "ms", "bytes", "percent", "count", "number"]

#: Stages whose surface is hatched: no work is done in them.
HATCHED = frozenset({"idle"})


def token(name: str) -> str:
    """The colour token ``name`` of ``tokens.css``."""
    return f"var(--{name})"


def stage_colour(stage: str) -> str:
    """The one colour of a stage; a sub-stage (``route.gate``) has its stage's."""
    name = stage.split(".")[0]
    colour = token(f"stage-{name}")
    return f"hatched {colour}" if name in HATCHED else colour
