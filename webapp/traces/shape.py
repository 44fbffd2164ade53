"""How lengths and arrivals are spread: the histograms of a trace, small enough for a page. Pure."""

from __future__ import annotations

from itertools import chain, count
from typing import Any, TypedDict

import numpy as np

#: A chart with more bars than this can't be read.
MAX_SLOTS = 100
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0
#: Widths that a reader can name.
WIDTHS_S = (
    *(unit * 10**power for power in range(-6, 1) for unit in (1.0, 2.0, 5.0)), 10.0, 15.0, 30.0,
    *(_MINUTE * number for number in (1, 2, 5, 10, 15, 30)), *(_HOUR * number for number in (1, 2, 3, 6, 12)),
)  # fmt: skip


class Lengths(TypedDict):
    """``counts[i]`` requests have from ``edges[i]`` to ``edges[i + 1] − 1`` tokens."""

    edges: list[int]
    counts: list[int]


class Arrivals(TypedDict):
    """``counts[i]`` requests arrive in the i-th slot of ``width_s`` seconds, counted from the first arrival."""

    width_s: float
    counts: list[int]


def shape_of(requests: np.ndarray) -> dict[str, Any]:
    """``prompt``, ``output`` and ``arrivals`` of requests [N] with fields ``arrival_s`` (ascending), ``prompt_tokens``
    and ``output_tokens``; N is at least 1."""
    return {
        "prompt": lengths(requests["prompt_tokens"]),
        "output": lengths(requests["output_tokens"]),
        "arrivals": arrivals(requests["arrival_s"]),
    }


def lengths(tokens: np.ndarray) -> Lengths:
    """A histogram over half octaves, 2^(i/2), the same ones for every trace; from the shortest to the longest."""
    edges = np.unique(np.round(2.0 ** (np.arange(2 * 32) / 2)).astype(np.int64))
    first = int(np.searchsorted(edges, tokens.min(), side="right")) - 1
    last = int(np.searchsorted(edges, tokens.max(), side="right"))
    kept = edges[first : last + 1]
    counts = np.bincount(np.searchsorted(kept, tokens, side="right") - 1, minlength=len(kept) - 1)
    return {"edges": kept.tolist(), "counts": counts.tolist()}


def arrivals(arrival_s: np.ndarray) -> Arrivals:
    """Requests in at most `MAX_SLOTS` slots of a round width. A trace whose requests all come at once has one slot of
    width 0."""
    since = arrival_s - arrival_s[0]
    span_s = float(since[-1])
    if span_s <= 0:
        return {"width_s": 0.0, "counts": [len(since)]}
    width_s = slot_width(span_s)
    slot = np.minimum((since / width_s).astype(np.int64), MAX_SLOTS - 1)
    return {"width_s": width_s, "counts": np.bincount(slot).tolist()}


def slot_width(span_s: float) -> float:
    """The smallest round width of which `MAX_SLOTS` cover the span: of a long one, days in powers of two."""
    return next(
        width for width in chain(WIDTHS_S, (_DAY * 2**power for power in count())) if width * MAX_SLOTS > span_s
    )
