"""The one formatter: what every page, chart and export uses to write a number with its unit.

Numbers keep three significant digits and move to the next unit before they need a fourth; what is missing
(``None``, NaN, infinity) is an en dash.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import TypeGuard

MISSING = "–"
MINUS = "−"
#: Between a number and its unit: the two never part at the end of a line.
NBSP = "\N{NO-BREAK SPACE}"

Number = float | int | None


def duration_us(us: Number) -> str:
    """Microseconds as µs, ms or s: ``0.42 µs``, ``3.14 ms``, ``12.0 s``."""
    return _scaled(us, 1000, ("µs", "ms", "s"))


def duration_ms(ms: Number) -> str:
    """Milliseconds as µs, ms or s."""
    return duration_us(None if ms is None else ms * 1000)


def size(count: Number) -> str:
    """Bytes in decimal units, as datasheets give them: ``61.1 GB``."""
    return _scaled(count, 1000, ("B", "kB", "MB", "GB", "TB", "PB"), whole_first=True)


def count(value: Number) -> str:
    """A whole number with its thousands marked: ``12,345``."""
    return _signed(f"{value:,.0f}") if _is_number(value) else MISSING


def number(value: Number) -> str:
    """A plain number with three significant digits: ``1.07``, ``1,235``."""
    return _signed(_three_digits(value)) if _is_number(value) else MISSING


def percent(share: Number) -> str:
    """A share of 1 as a percentage: 0.123 is ``12.3%``."""
    return f"{_signed(_percent_digits(share * 100))}%" if _is_number(share) else MISSING


def signed_percent(change: Number) -> str:
    """A change relative to 1 with its sign: 0.081 is ``+8.1%``, -0.31 is ``−31%``."""
    if not _is_number(change):
        return MISSING
    digits = _percent_digits(change * 100)
    return f"{'+' if float(digits.replace(',', '')) > 0 else ''}{_signed(digits)}%"


def change(ratio: Number) -> str:
    """contender / base with the sign of the interface: 0.82 is ``▼ 18%`` (faster), 1.22 is ``▲ 22%`` (slower)."""
    if not _is_number(ratio):
        return MISSING
    digits = _percent_digits(abs(ratio - 1) * 100)
    if float(digits.replace(",", "")) == 0:
        return "~"
    return f"{'▼' if ratio < 1 else '▲'}{NBSP}{digits}%"


def within(ratio: float, low: float, high: float) -> str:
    """The interval of a ratio from ``low`` to ``high`` for `change`: 0.82 within 0.81 and 0.84 is ``16–19``. What lies
    on the other side of no change is negative: ``−0.3–2.7``. A narrow one has a decimal, so that it has a width."""
    ends = sorted((end - 1) * 100 * (-1 if ratio < 1 else 1) for end in (low, high))
    narrow = ends[1] - ends[0] < 2
    return "–".join(_signed(f"{end:,.1f}" if narrow else _percent_digits(end)) for end in ends)


def span(seconds: Number) -> str:
    """A length of time a person waits for: ``40 s``, ``2 min``, ``3 h 20 min``, ``5 days``."""
    if not _is_number(seconds):
        return MISSING
    whole = round(seconds)
    if whole < 60:
        return f"{whole}{NBSP}s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes}{NBSP}min"
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}{NBSP}h {rest}{NBSP}min" if rest and hours < 10 else f"{hours}{NBSP}h"
    return f"{round(hours / 24)}{NBSP}days"


def ago(then: datetime | None, now: datetime) -> str:
    """How long ago something happened, as `span` writes it: ``2 s ago``, ``just now``."""
    if then is None:
        return MISSING
    seconds = (now - then).total_seconds()
    return "just now" if seconds < 1 else f"{span(seconds)} ago"


def _is_number(value: Number) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _scaled(value: Number, base: int, units: tuple[str, ...], whole_first: bool = False) -> str:
    """``value`` in the largest unit that keeps it at 1 or above; ``whole_first``: the smallest unit has no decimals."""
    if not _is_number(value):
        return MISSING
    index = 0
    # 999.5 already reads 1,000 with three digits, so it belongs to the next unit
    while index < len(units) - 1 and abs(value) >= base * 0.9995:
        value /= base
        index += 1
    digits = f"{value:.0f}" if whole_first and index == 0 else _three_digits(value)
    return f"{_signed(digits)}{NBSP}{units[index]}"


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{value:,.{decimals}f}"


def _percent_digits(value: float) -> str:
    """One decimal below 10, none above: a tenth of a percent of a large share is noise."""
    return f"{value:,.1f}" if abs(value) < 9.95 else f"{value:,.0f}"


def _signed(digits: str) -> str:
    """With a true minus sign, and none before a zero."""
    if float(digits.replace(",", "")) == 0:
        return digits.lstrip("-")
    return digits.replace("-", MINUS)
