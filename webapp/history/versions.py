"""What was measured, as far as labels and the environment tell: the marks of a history (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def known(labels: Mapping[str, str], commit: str | None, software: Mapping[str, str] | None) -> dict[str, str]:
    """By name; a label wins over what the environment tells under the same name."""
    return dict(software or {}) | ({"commit": commit} if commit else {}) | dict(labels)


def of_experiment(labels: Mapping[str, str], result: Mapping[str, Any]) -> dict[str, str]:
    """Of a finished experiment. The machine's own details would tell of the software, but not of the commit: a machine
    stays the same when the code on it changes."""
    environment = result.get("environment") or {}
    return known(labels, environment.get("commit"), environment.get("versions"))


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """What differs, before and after; a dash where one of them does not tell."""
    return {
        name: (before.get(name, "–"), after.get(name, "–"))
        for name in dict.fromkeys([*after, *before])
        if before.get(name) != after.get(name)
    }
