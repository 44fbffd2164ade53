"""Pydantic's errors in the project's words: one sentence with the value and what is allowed."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from bench_worker.errors import SpecError, not_one_of, shown


class SpecProblem(ValueError):
    """One or more `SpecError`s on their way through pydantic, which carries other ``ValueError``s as text only."""

    def __init__(self, *problems: SpecError) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_LENGTHS = {"min_length": "at least", "max_length": "at most"}
_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_unicode": "text",
    "list_type": "a list",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dict_type": "an object",
}


def spec_errors(error: ValidationError, schema: type[BaseModel]) -> list[SpecError]:
    """Every problem that pydantic found in a ``schema`` document, in the project's words."""
    found: list[SpecError] = []
    for problem in error.errors(include_url=False):
        carried = problem.get("ctx", {}).get("error")
        found += carried.problems if isinstance(carried, SpecProblem) else [_spec_error(problem, schema)]
    return found


def _spec_error(problem: Any, schema: type[BaseModel]) -> SpecError:
    parts = [_part(part) for part in problem["loc"]]
    field, owner = ".".join(parts) or "experiment", ".".join(parts[:-1]) or "experiment"
    value, kind, context = problem["input"], problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        message = f"there is no such field; {owner} has {_fields(problem['loc'][:-1], schema)}"
    elif kind == "missing":
        value, message = None, "is missing and has no default"
    elif kind == "literal_error":
        allowed = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        message = (
            not_one_of(value, allowed)
            if len(allowed) > 1
            else f"{shown(value)} is not allowed; it must be {allowed[0]}"
        )
    elif bounds := [f"{words} {_number(context[key])}" for key, words in _BOUNDS.items() if key in context]:
        message = f"{shown(value)} is not allowed; it must be {' and '.join(bounds)}"
    elif lengths := [f"{words} {context[key]:,}" for key, words in _LENGTHS.items() if key in context]:
        message = f"a length of {len(value):,} is not allowed; it must be {' and '.join(lengths)}"
    elif kind in _KINDS:
        message = f"{shown(value)} is not {_KINDS[kind]}"
    else:
        message = f"{shown(value)} is not allowed: {problem['msg'][0].lower()}{problem['msg'][1:]}"
    return SpecError(field, value, message)


def _number(bound: float) -> str:
    return f"{int(bound) if bound == int(bound) else bound:,}"


def _part(part: int | str) -> str:
    """One part of a dotted name. A user's own key may be anything, a line break or a megabyte."""
    text = str(part)
    return text if text.replace("_", "").isalnum() and len(text) <= 60 else shown(text)


def _fields(path: tuple[int | str, ...], schema: type[BaseModel]) -> str:
    """The fields of the object at ``path``."""
    owner: Any = schema
    for name in path:
        if isinstance(name, int):
            continue
        annotation = owner.model_fields[name].annotation
        inner = [a for a in getattr(annotation, "__args__", ()) if isinstance(a, type) and issubclass(a, BaseModel)]
        owner = inner[0] if inner else annotation
    return ", ".join(field.alias or name for name, field in owner.model_fields.items())
