"""How a digest says what became slower: direction, size, certainty, first night, versions either side, link (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from webapp.history import metrics
from webapp.ui.formatting import signed_percent

#: A digest lists the largest changes; the rest is a number and a link.
LISTED = 10


class Slower(NamedTuple):
    """One series that became slower on the night of ``first``; ``ratio``: new level / old level."""

    metric: str
    variant: str
    condition: str
    ratio: float
    p_value: float
    first: datetime
    address: str

    @property
    def words(self) -> str:
        return f"{metrics.name(self.metric)} {signed_percent(self.ratio - 1)}"


def subject(group: str, changes: Sequence[Slower]) -> str:
    return f"Slower: {largest_first(changes)[0].words}, {group}"


def text(group: str, changes: Sequence[Slower], versions: Mapping[str, tuple[str, str]]) -> str:
    ordered = largest_first(changes)
    first = min(change.first for change in changes)
    lines = [f"{group} is slower since the night of {first:%Y-%m-%d}, and a further night confirmed it.", ""]
    for change in ordered[:LISTED]:
        where = f"{change.variant} at {change.condition}"
        lines += [f"- {change.words} (p = {change.p_value:.1g}), {where}", f"  {change.address}"]
    if len(ordered) > LISTED:
        lines.append(f"- and {len(ordered) - LISTED} more")
    new = [f"{name} {before} → {after}" for name, (before, after) in versions.items()]
    return "\n".join([*lines, "", f"New that night: {', '.join(new)}." if new else "No version was new that night."])


def facts(group: str, changes: Sequence[Slower], versions: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """The same for a webhook. ``ratio``: new level / old level."""
    return {
        "event": "slower",
        "group": group,
        "first_bad_night": min(change.first for change in changes).date().isoformat(),
        "changes": [
            change._asdict() | {"first": change.first.isoformat(), "name": metrics.name(change.metric)}
            for change in largest_first(changes)
        ],
        "versions": {name: {"before": before, "after": after} for name, (before, after) in versions.items()},
    }


def largest_first(changes: Sequence[Slower]) -> list[Slower]:
    """Stages before the sums that they are part of, so that a headline names the stage; then by size."""
    return sorted(changes, key=lambda change: (not change.metric.startswith(metrics.STAGE), -change.ratio))
