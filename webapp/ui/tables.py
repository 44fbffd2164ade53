"""A table of many rows: sorted by any column and shown page by page, both as the address says (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from django.core.paginator import Page, Paginator
from django.http import QueryDict

PER_PAGE = 50


class Column(NamedTuple):
    """``values`` [n], NaN where a row has none; ``show`` writes one. ``stage``: whose colour stands at its head."""

    key: str
    title: str
    values: np.ndarray
    show: Callable[[float], str]
    stage: str = ""


class Head(NamedTuple):
    """``order``: ``ascending`` or ``descending`` where the table is sorted by this column; ``link``: the query that
    sorts by it, or the other way round."""

    title: str
    order: str
    link: str
    stage: str


class Table(NamedTuple):
    """``places``: of the rows on this page, among all. ``previous`` and ``next``: the queries of its neighbours."""

    heads: list[Head]
    rows: list[list[str]]
    places: list[int]
    page: Page[int]
    previous: str | None
    next: str | None


def table(
    columns: Sequence[Column], query: QueryDict, names: tuple[str, str], kept: Sequence[int] | None = None
) -> Table:
    """The rows at ``kept``, or all, as ``query`` asks for them under the ``names`` of order and page.

    The order is a column's key, with a minus before it for the largest first; what is no key leaves the rows as they
    are, and rows without a value come last. What is no page is the first or the last one.
    """
    sort, at = (query.get(name, "") for name in names)
    places = np.arange(len(columns[0].values)) if kept is None else np.asarray(kept, int)
    chosen = next((column for column in columns if column.key == sort.removeprefix("-")), None)
    falls = sort.startswith("-")
    if chosen is not None:
        values = chosen.values[places]
        places = places[np.argsort(-values if falls else values, kind="stable")]
    page = Paginator(places.tolist(), PER_PAGE).get_page(at)
    order = {chosen.key: "descending" if falls else "ascending"} if chosen else {}
    return Table(
        heads=[
            Head(column.title, order.get(column.key, ""), link(query, {names[0]: key, names[1]: None}), column.stage)
            for column in columns
            # the largest are looked for first
            for key in [column.key if order.get(column.key) == "descending" else f"-{column.key}"]
        ],
        rows=[[column.show(float(column.values[place])) for column in columns] for place in page],
        places=list(page),
        page=page,
        previous=link(query, {names[1]: page.previous_page_number()}) if page.has_previous() else None,
        next=link(query, {names[1]: page.next_page_number()}) if page.has_next() else None,
    )


def link(query: QueryDict, changes: Mapping[str, object]) -> str:
    """``query`` with ``changes``, of which None takes a name out, as an address has it: ``?sort=-time``."""
    changed = query.copy()
    for name, value in changes.items():
        changed.pop(name, None)
        if value is not None:
            changed[name] = str(value)
    return f"?{changed.urlencode()}"
