"""Reads docker-compose.yml as Compose would, with values in the place of ``${NAME}``; and Dockerfiles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docker-compose.yml"
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))

#: ``$$``, or ``${NAME}`` with an optional ``:-default`` or ``:?message``, whose innermost braces are matched first.
_REFERENCE = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>\w+)(?:(?P<how>:-|:\?)(?P<rest>[^{}]*))?\})")
_ESCAPED = "\0"


class Unset(Exception):
    """A variable that must be set and is not."""


def read(file: Path = FILE) -> dict[str, Any]:
    """The file as it is written, its anchors resolved."""
    return dict(yaml.safe_load(file.read_text()))


def load(environment: Mapping[str, str], file: Path = FILE) -> dict[str, Any]:
    """The file with its variables filled in. Raises `Unset` as Compose refuses to start."""
    return dict(_walk(read(file), environment))


def interpolate(text: str, environment: Mapping[str, str]) -> str:
    """``text`` with its variables filled in. One that must be set must be so in an unused default, too."""

    def value(found: re.Match[str]) -> str:
        if found["escaped"]:
            return _ESCAPED
        given = environment.get(found["name"], "")
        if found["how"] == ":?" and not given:
            raise Unset(f"{found['name']}: {found['rest']}")
        return given or (found["rest"] if found["how"] == ":-" else "")

    while (further := _REFERENCE.sub(value, text)) != text:
        text = further
    return text.replace(_ESCAPED, "$")


def names_in(text: str) -> set[str]:
    """Every variable that the text of a compose file refers to."""
    return set(re.findall(r"(?<!\$)\$\{(\w+)", text))


def instructions(file: Path) -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, continued lines joined."""
    lines = re.sub(r"\\\n", " ", file.read_text()).splitlines()
    return [tuple(line.split(" ", 1)) for line in lines if line and not line.startswith("#")]  # type: ignore[misc]


def arguments(file: Path, instruction: str) -> list[str]:
    return [rest for name, rest in instructions(file) if name == instruction]


def _walk(node: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return {key: _walk(value, environment) for key, value in node.items()}
    if isinstance(node, list):
        return [_walk(value, environment) for value in node]
    return interpolate(node, environment) if isinstance(node, str) else node
