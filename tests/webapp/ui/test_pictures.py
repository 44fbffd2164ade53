"""Pictures as SVG: what is drawn where, read back from the markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from webapp.ui import pictures
from webapp.ui.pictures import Bar

SVG = "{http://www.w3.org/2000/svg}"


def cells(picture: str, shape: tuple[int, int]) -> np.ndarray:
    """The levels that a heat map shows, cell by cell."""
    found = np.zeros(shape, int)
    for path in ElementTree.fromstring(picture).iter(f"{SVG}path"):
        level = int(path.attrib["class"].removeprefix("heat-"))
        for x, y, length in re.findall(r"M(\d+) (\d+)h(\d+)", path.attrib["d"]):
            assert (found[int(y), int(x) : int(x) + int(length)] == 0).all()
            found[int(y), int(x) : int(x) + int(length)] = level
    return found


@given(arrays(int, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, 6)))
def test_a_heat_map_shows_every_cell_at_its_level(levels: np.ndarray) -> None:
    assert np.array_equal(cells(pictures.heatmap(levels, "x"), levels.shape), levels)


def test_equal_neighbours_are_one_stroke() -> None:
    picture = pictures.heatmap(np.array([[3, 3, 3, 0, 3]]), "x")
    assert '<path class="heat-3" d="M0 0h3M4 0h1"/>' in picture
    assert 'viewBox="0 -0.5 5 1"' in picture


@pytest.mark.parametrize(("rows", "height"), [(1, 128), (8, 128), (60, 120), (64, 128), (100, 100), (300, 300)])
def test_a_row_is_a_whole_number_of_pixels_high(rows: int, height: int) -> None:
    assert f'height="{height}"' in pictures.heatmap(np.ones((rows, 2), int), "x")


def bars_of(picture: str) -> list[ElementTree.Element]:
    """The bars themselves, without what can be pointed at."""
    return [rect for rect in ElementTree.fromstring(picture).iter(f"{SVG}rect") if "class" not in rect.attrib]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_bars_are_as_high_as_their_shares(shares: list[float]) -> None:
    bars = bars_of(pictures.histogram([Bar(share, "", "") for share in shares], "x"))
    heights = [float(bar.attrib["height"]) for bar in bars]
    most = max(shares)
    for share, height in zip(shares, heights, strict=True):
        assert height == pytest.approx(98 * share / most if most else 0, abs=0.051)
    for bar in bars:  # all stand on the same line
        assert float(bar.attrib["y"]) + float(bar.attrib["height"]) == pytest.approx(114, abs=0.11)


def test_the_tallest_bar_has_its_share_and_every_bar_its_words() -> None:
    picture = pictures.histogram([Bar(0.25, "0", "a quarter"), Bar(0.75, "1", "<most> & more")], "Shares")
    assert picture.count('class="most"') == 1
    assert ">75%</text>" in picture
    assert "<title>&lt;most&gt; &amp; more</title>" in picture
    assert 'aria-label="Shares"' in picture


def test_two_tallest_bars_have_one_share_between_them() -> None:
    assert pictures.histogram([Bar(0.5, "", ""), Bar(0.5, "", "")], "x").count("50%") == 1


def test_nothing_makes_an_empty_picture() -> None:
    assert bars_of(pictures.histogram([], "x")) == []


def test_a_label_can_hold_anything() -> None:
    for picture in (pictures.heatmap(np.ones((1, 1), int), '"<&'), pictures.histogram([], '"<&')):
        assert ElementTree.fromstring(picture).attrib["aria-label"] == '"<&'


def stack(limit: float | None) -> list[ElementTree.Element]:
    pieces = [pictures.Piece("experts", 30, "experts: 30 B"), pictures.Piece("a<b", 10, "a<b: 10 B")]
    return list(ElementTree.fromstring(pictures.stacked(pieces, limit, "x")))


def test_a_stack_ends_before_the_mark_where_it_fits() -> None:
    device, experts, other, mark = stack(80)
    assert (device.attrib["width"], mark.attrib["d"]) == ("1000.0", "M1000.0 0v28")
    assert (experts.attrib["x"], experts.attrib["width"]) == ("0.0", "375.0")
    assert (other.attrib["data-part"], other.attrib["x"], other.attrib["width"]) == ("a<b", "375.0", "125.0")


def test_a_stack_that_is_too_large_goes_beyond_the_mark() -> None:
    *_, other, mark = stack(20)
    assert float(other.attrib["x"]) + float(other.attrib["width"]) == 1000
    assert mark.attrib["d"] == "M500.0 0v28"


def test_a_stack_without_a_limit_has_no_mark() -> None:
    assert len(stack(None)) == 2
