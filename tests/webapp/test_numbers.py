"""Numbers that are written in addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webapp.numbers import number_in


@given(number=st.integers(0, 10**17 - 1))
def test_a_number_is_read(number: int) -> None:
    assert number_in(f" {number} ") == number


@pytest.mark.parametrize("text", ["", " ", "x", "-1", "+1", "1.5", "1_0", "1 0", "²", "٣", "9" * 18, "9" * 5000])
def test_what_is_no_number_is_none(text: str) -> None:
    assert number_in(text) is None
