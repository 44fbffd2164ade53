"""The words that come with the project: its Markdown files, and the commands in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


class Block(NamedTuple):
    """A fenced block: the language beside the fence, and the text between."""

    language: str
    text: str


def blocks(text: str) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


def section(file: Path, heading: str, under: str = "") -> str:
    """The text below ``heading``, up to the next heading of its level or above; after the heading ``under``."""
    text = file.read_text()
    text = text[text.index(f"\n{under}\n") :] if under else text
    level = heading.partition(" ")[0]
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, heading
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def console(text: str) -> list[str]:
    """The lines that a reader types."""
    return [line for block in blocks(text) if block.language == "console" for line in block.text.splitlines()]
