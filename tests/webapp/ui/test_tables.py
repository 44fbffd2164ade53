"""Tables of many rows: their order and their pages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from django.http import QueryDict
from hypothesis import given
from hypothesis import strategies as st

from webapp.ui import tables
from webapp.ui.formatting import count
from webapp.ui.tables import PER_PAGE, Column, Table


def columns(*values: float) -> list[Column]:
    """The place of each row, and its value."""
    return [
        Column("place", "Place", np.arange(len(values), dtype=float), count),
        Column("ms", "Time", np.array(values, float), count, stage="experts"),
    ]


def table(found: list[Column], sort: str, page: str = "", **kept: Any) -> Table:
    query = QueryDict(mutable=True)
    query.update({"sort": sort, "page": page, "other": "1"})
    return tables.table(found, query, ("sort", "page"), **kept)


def first(found: Table) -> list[str]:
    return [row[0] for row in found.rows]


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("", ["0", "1", "2", "3"]),
        ("no such", ["0", "1", "2", "3"]),
        ("ms", ["1", "0", "2", "3"]),  # equal values stay in their order
        ("-ms", ["0", "2", "1", "3"]),
        ("-place", ["3", "2", "1", "0"]),
    ],
)
def test_rows_are_sorted_and_those_without_a_value_come_last(sort: str, order: list[str]) -> None:
    assert first(table(columns(5, 1, 5, np.nan), sort)) == order


def test_a_head_says_how_it_is_sorted_and_what_a_click_asks_for() -> None:
    heads = table(columns(1), "", "2").heads
    assert [(head.order, head.link) for head in heads] == [("", "?other=1&sort=-place"), ("", "?other=1&sort=-ms")]
    assert table(columns(1), "-ms").heads[1][1:] == ("descending", "?other=1&sort=ms", "experts")
    assert table(columns(1), "ms").heads[1][1:] == ("ascending", "?other=1&sort=-ms", "experts")


def test_only_rows_that_are_kept_are_shown_in_their_order() -> None:
    found = table(columns(5, 9, 7, 6), "-ms", kept=[3, 2, 0])
    assert (first(found), found.places) == (["2", "3", "0"], [2, 3, 0])
    assert table(columns(1, 2), "", kept=[]).rows == []


@given(st.integers(0, 3 * PER_PAGE), st.text(max_size=3))
def test_any_page_is_a_page(rows: int, page: str) -> None:
    found = table(columns(*range(rows)), "", page)
    start = (found.page.number - 1) * PER_PAGE
    assert found.places == list(range(rows))[start : start + PER_PAGE]


def test_pages_follow_the_order() -> None:
    found = table(columns(*range(PER_PAGE + 2)), "-ms", "2")
    assert first(found) == ["1", "0"]
    assert (found.previous, found.next) == ("?sort=-ms&other=1&page=1", None)
    assert table(columns(*range(PER_PAGE + 2)), "ms").next == "?sort=ms&other=1&page=2"
    assert table(columns(1), "").next is None
