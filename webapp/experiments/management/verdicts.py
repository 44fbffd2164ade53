"""Did something become slower? What a pipeline fails on, and the summary that it shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SLOWER = "slower"


def slower(result: Mapping[str, Any]) -> list[str]:
    """A sentence for each condition under which a variant's step is slower than the first variant's, surely so."""
    return [
        f"{one['contender']} is slower than {one['base']} at {one['condition']}: {_change(one)}"
        for one in _by_condition(result)
        if one["quantities"]["step_us"]["verdict"] == SLOWER
    ]


def markdown(row: Mapping[str, Any], page: str, result: Mapping[str, Any] | None) -> str:
    """What came of an experiment, for the page of a pipeline. ``row``: as the API gives it; ``page``: its address."""
    lines = [f"## [{_escaped(row['title'])}]({page})", "", _escaped(row["answer"] or row["failure"] or row["state"])]
    compared = _by_condition(result or {})
    if compared:
        lines += ["", "| variant | at | step | verdict |", "| --- | --- | ---: | --- |"]
        lines += [
            f"| {_escaped(one['contender'])} against {_escaped(one['base'])} | {one['condition']} | {_change(one)} "
            f"| {one['quantities']['step_us']['verdict']} |"
            for one in compared
        ]
    return "\n".join(lines) + "\n"


def _by_condition(result: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [one for one in result.get("comparisons", []) if one["condition"] and "step_us" in one["quantities"]]


def _change(one: Mapping[str, Any]) -> str:
    step = one["quantities"]["step_us"]
    interval = step.get("ci95")
    sure = f" ({interval[0] - 1:+.1%} to {interval[1] - 1:+.1%}, {step['samples']} pairs)" if interval else ""
    return f"{step['ratio'] - 1:+.1%}{sure}"


def _escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in text.replace("\n", " "))
