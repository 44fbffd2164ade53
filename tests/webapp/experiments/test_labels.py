"""Labels: few, short and on one line, or refused in one sentence."""

from __future__ import annotations

import pytest

from bench_worker.errors import SpecError
from webapp.experiments.labels import MAX_LABELS, parse


def test_the_last_of_a_key_counts_and_only_the_first_sign_parts_it() -> None:
    assert parse(["image=1", " image = 2 ", "flags=a=b"], "--label") == {"image": "2", "flags": "a=b"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("image", "--label: 'image' is no key=value, whose key has up to 40 letters, digits, dots, dashes and "),
        ("=1", "--label: '=1' is no key=value, "),
        (f"{'k' * 41}=1", "is no key=value, "),
        ("im age=1", "--label: 'im age=1' is no key=value, "),
        ("image=", "--label: the value of image has 0 characters, and must have 1 to 100, on one line."),
        (f"image={'x' * 10_000}", "--label: the value of image has 10,000 characters, and must have 1 to 100, on one"),
        ("image=1\n2", "--label: the value of image must have 1 to 100, on one line."),
    ],
)  # fmt: skip
def test_what_is_no_label_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse([text], "--label")
    assert sentence in str(refused.value)
    assert len(str(refused.value)) < 250


def test_too_many_are_refused() -> None:
    with pytest.raises(SpecError, match=r"^--label: 21 labels are too many; 20 are allowed\.$"):
        parse([f"k{number}=1" for number in range(MAX_LABELS + 1)], "--label")
