"""What was measured, and what was new of it."""

from __future__ import annotations

from webapp.history import versions


def test_labels_win_over_what_the_environment_tells() -> None:
    assert versions.known({"torch": "mine"}, "abc", {"torch": "2.13"}) == {"torch": "mine", "commit": "abc"}
    assert versions.known({}, None, None) == {}


def test_differences_hold_both_sides() -> None:
    found = versions.differences({"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"})
    assert found == {"b": ("1", "2"), "d": ("–", "1"), "c": ("1", "–")}
