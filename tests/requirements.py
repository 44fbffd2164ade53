"""What the requirements lists bring, from the lists themselves and from what is installed here."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def direct(file: Path) -> list[Requirement]:
    """The requirements of a list and of those that it includes."""
    found = []
    for line in file.read_text().splitlines():
        text = re.sub(r"(^|\s+)#.*", "", line).strip()
        if text.startswith("-r "):
            found += direct(file.parent / text.removeprefix("-r "))
        elif text:
            found.append(Requirement(text))
    return found


def distributions(*files: str) -> set[str]:
    """What installing the lists brings, as far as it is installed here."""
    found: set[str] = set()
    wanted: list[Any] = [requirement for file in files for requirement in direct(ROOT / file)]
    while wanted:
        requirement = wanted.pop()
        name = canonical(requirement.name)
        try:
            further = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        extras = requirement.extras or {""}
        if name in found and not requirement.extras:
            continue
        found.add(name)
        for text in further:
            one = Requirement(text)
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras):
                wanted.append(one)
    return found
