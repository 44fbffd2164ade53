"""What is and what isn't a JSON document."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.document import MAX_DOCUMENT_BYTES, decode
from bench_worker.errors import SpecError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_every_json_value_is_read_back(value):
    assert decode(json.dumps(value).encode()) == value


def test_a_byte_order_mark_does_no_harm():
    assert decode(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "the document is not valid JSON (line 1, column 1: Expecting value)"),
        (
            b'{"a": 1,\n}',
            "the document is not valid JSON (line 2, column 1: Expecting property name enclosed in double",
        ),
        (b"{'a': 1}", "the document is not valid JSON (line 1, column 2: Expecting property name enclosed in double"),
        (b"{} {}", "the document is not valid JSON (line 1, column 4: Extra data)"),
        (b'"\xff"', "the document is not UTF-8 text (byte 1)"),
        ('{"a": 1}'.encode("utf-16"), "the document is not UTF-8 text (byte 0)"),
        (b"\x00\x01\x02", "the document is not valid JSON (line 1, column 1: Expecting value)"),
        (b'{"a": NaN}', "the document is not valid JSON (NaN is no JSON value)"),
        (b"[Infinity]", "the document is not valid JSON (Infinity is no JSON value)"),
        (b"[-Infinity]", "the document is not valid JSON (-Infinity is no JSON value)"),
        (b"[" * 100_000, "the document nests too deep"),
        (b'{"a":' * 100_000, "the document nests too deep"),
        (b"1" * 5000, "the document holds a number of thousands of digits"),
        (b'{"base": {"model": "a", "model": "b"}}', "'model' stands twice in the same object of the document"),
        (b" " * 10_000_000, "the document has more than 1,000,000 bytes, the most that are read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_other_document_gets_one_sentence(data, sentence):
    with pytest.raises(SpecError) as caught:
        decode(data)
    assert caught.value.field == "experiment"
    assert caught.value.message.startswith(sentence)
    assert "\n" not in str(caught.value)


def test_the_largest_document_is_still_read():
    assert decode(b'"' + b"x" * (MAX_DOCUMENT_BYTES - 2) + b'"') == "x" * (MAX_DOCUMENT_BYTES - 2)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data):
    with suppress(SpecError):
        decode(data)
