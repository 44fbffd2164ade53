"""How a digest says what became slower: direction, size, certainty, first night, versions either side, link (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from webapp.history import metrics
from webapp.history.detection import Opinion
from webapp.ui.formatting import signed_percent

#: A digest lists the largest changes; the rest is a number and a link.
LISTED = 10


class Slower(NamedTuple):
    """One series that became slower on the night of ``first``; ``ratio``: new level / old level. ``confirmed_by``: what
    bore it out, a further night or a re-run."""

    metric: str
    variant: str
    condition: str
    ratio: float
    p_value: float
    first: datetime
    address: str
    confirmed_by: str

    @property
    def words(self) -> str:
        return f"{metrics.name(self.metric)} {signed_percent(self.ratio - 1)}"


def subject(group: str, changes: Sequence[Slower]) -> str:
    return f"Slower: {largest_first(changes)[0].words}, {group}"


A_NIGHT = "a further night"


_OF_RERUN = {
    Opinion.CONFIRMS: "measured the new level, too, and confirmed it.",
    Opinion.UNDECIDED: "neither confirmed it nor spoke against it; a further night decides.",
    Opinion.DOUBTS: "was back at the old level, so the next night alone does not confirm it.",
}


def a_rerun(at: datetime) -> str:
    return f"a re-run at {at:%H:%M} UTC"


def of_rerun(opinion: Opinion, at: datetime) -> str:
    """What a re-run that ended ``at`` some time says."""
    return f"A re-run on {at:%b %d} at {at:%H:%M} UTC {_OF_RERUN[opinion]}"


def environment(since_good: Mapping[str, tuple[str, str]]) -> str:
    """What a re-run says about the last good night's environment. ``since_good``: what differs, then and now."""
    if not since_good:
        return "Labels, commit and versions of the re-run are those of the last good night."
    return (
        f"The re-run measured what is installed now. Workers can't go back to the last good night "
        f"({listed(since_good)}), so it tells that the new level is there, not what caused it."
    )


def listed(versions: Mapping[str, tuple[str, str]]) -> str:
    """``torch 2.12.0 → 2.13.0, image 1 → 2``."""
    return ", ".join(f"{name} {before} → {after}" for name, (before, after) in versions.items())


def text(
    group: str, changes: Sequence[Slower], versions: Mapping[str, tuple[str, str]], measured_again: str = ""
) -> str:
    """``measured_again``: what there is to say about re-runs, in whole sentences."""
    ordered = largest_first(changes)
    first = min(change.first for change in changes)
    by = " and ".join(dict.fromkeys(change.confirmed_by for change in ordered))
    lines = [f"{group} is slower since the night of {first:%Y-%m-%d}, confirmed by {by}.", ""]
    for change in ordered[:LISTED]:
        where = f"{change.variant} at {change.condition}"
        lines += [f"- {change.words} (p = {change.p_value:.1g}), {where}", f"  {change.address}"]
    if len(ordered) > LISTED:
        lines.append(f"- and {len(ordered) - LISTED} more")
    lines += ["", f"New that night: {listed(versions)}." if versions else "No version was new that night."]
    return "\n".join([*lines, measured_again] if measured_again else lines)


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
