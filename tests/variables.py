"""Which environment variables the project reads, found in its source."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(path for part in ("webapp", "bench_worker") for path in (ROOT / part).rglob("*.py")
                 if "node_modules" not in path.parts)  # fmt: skip


class Variable(NamedTuple):
    """``kind`` is django-environ's name for the type; ``default`` the source of the default value."""

    kind: str
    default: str


def of_settings() -> dict[str, Variable]:
    """What `webapp.settings` reads, each with its type and its default."""
    found = {}
    for node in ast.walk(ast.parse((ROOT / "webapp" / "settings.py").read_text())):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="env"), attr=kind),
                args=[ast.Constant(value=str(name))],
                keywords=[ast.keyword(arg="default", value=default)],
            ):
                found[name] = Variable(kind, ast.unparse(default))
    return found


def read_elsewhere() -> set[str]:
    """Those that other modules take out of ``os.environ`` by name, without giving them a value themselves."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case (
                    ast.Call(
                        func=ast.Attribute(value=ast.Attribute(attr="environ"), attr="get"),
                        args=[ast.Constant(value=str(name)), *_],
                    )
                    | ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name)))
                ):
                    found.add(name)
    return found


def without_ours() -> dict[str, str]:
    """This process's environment without what the settings read, and without what the test run adds."""
    ours = {*of_settings(), "DJANGO_SETTINGS_MODULE", "DJANGO_ALLOW_ASYNC_UNSAFE"}
    return {name: value for name, value in os.environ.items() if name not in ours}
