"""How a value and a closed set stand in a sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.errors import MAX_NAMES, SpecError, not_one_of, shown


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def test_an_error_is_the_first_of_those_it_carries():
    second = SpecError("base.model", "x", "is unknown")
    first = SpecError("base.layers", 0, "0 is not allowed", more=[second])
    assert str(first) == "base.layers: 0 is not allowed"
    assert (first.field, first.value, first.message) == ("base.layers", 0, "0 is not allowed")
    assert first.errors == [first, second]
    assert second.errors == [second]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", r"'a\nb'"),
        ("\ud800", r"'\ud800'"),
        (None, "None"),
        (1.5, "1.5"),
        ("x" * 58, f"'{'x' * 58}'"),
        ("x" * 59, f"'{'x' * 58}…"),
    ],
)
def test_a_value_is_quoted_on_one_line_and_cut(value, text):
    assert shown(value) == text


def test_a_value_that_has_no_text_is_called_by_its_kind():
    assert shown(10**5000) == "this int"  # more digits than Python prints
    assert shown(nested(5000)) == "this list"


@given(st.text() | st.integers() | st.lists(st.text()) | st.dictionaries(st.text(), st.floats()))
def test_whatever_the_value_a_sentence_stays_short(value):
    assert len(shown(value)) <= 60
    assert "\n" not in shown(value)


def test_what_is_allowed_is_listed_with_the_nearest_name():
    assert not_one_of("tokenchoice", ["token_choice", "soft"]) == (
        "'tokenchoice' is not one of token_choice, soft (did you mean token_choice?)"
    )
    assert not_one_of("zzz", iter(["token_choice", "soft"])) == "'zzz' is not one of token_choice, soft"
    assert not_one_of(3, ["1", "2"]) == "3 is not one of 1, 2"


def test_a_long_list_of_names_is_cut_but_searched_whole():
    names = [f"trace-{i:04}" for i in range(MAX_NAMES + 1000)]
    sentence = not_one_of("trace-1039x", names)
    assert sentence.endswith("trace-0039 and 1,000 more (did you mean trace-1039?)")
