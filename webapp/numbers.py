"""Numbers in addresses and searches: anyone may write anything there."""

from __future__ import annotations

__all__ = ["number_in"]

#: A key of the database has no more, and `int` refuses thousands.
MAX_DIGITS = 17


def number_in(text: str) -> int | None:
    """The number that is written in ``text``, spaces around it aside, in at most `MAX_DIGITS` digits; None where it
    is no such number."""
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= MAX_DIGITS else None
