"""What differs between runs, in their configurations and in the machines that measured them (pure).

Only one difference can be the cause of a change. With more, a page lists them and names none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench_worker.spec import GROUPS, Spec, diff, flat, label
from bench_worker.spec_fields import Limits
from webapp.experiments import fingerprints
from webapp.experiments.compare import Measured
from webapp.experiments.compare_table import Contender
from webapp.ui.formatting import MISSING

#: More values than this of one variable are counted instead of listed.
LISTED = 8


class Difference(NamedTuple):
    """A variable by its dotted name, or a fact of the machine by its own: the baseline's value and those of the others,
    each once. ``by_contender``: the value of each contender, in their order."""

    name: str
    before: str
    after: list[str]
    by_contender: list[str]

    @property
    def values(self) -> str:
        """``deepspeed → zentorch``."""
        listed = ", ".join(self.after[:LISTED])
        more = f" and {len(self.after) - LISTED} more" if len(self.after) > LISTED else ""
        return f"{self.before} → {listed}{more}"

    @property
    def words(self) -> str:
        return f"{self.name}: {self.values}"


@dataclass(frozen=True)
class Differs:
    """``asked``: of the configurations; ``machine``: of the machines and their software; ``same``: what is equal, in
    words."""

    asked: list[Difference]
    machine: list[Difference]
    same: list[str]

    @property
    def all(self) -> list[Difference]:
        return [*self.asked, *self.machine]

    @property
    def sentence(self) -> str:
        """One line where one thing differs; with more, that no cause can be named."""
        same = f"; {', '.join(self.same)}" if self.same else ""
        if not self.all:
            return f"Nothing differs{same}: what remains is noise, and the time between the measurements."
        if len(self.all) == 1:
            return f"{self.all[0].words}{same}."
        return f"{len(self.all)} things differ; this page can't say which one did it."


def differs(contenders: Sequence[Contender], base: Contender) -> Differs:
    """Everything in which any contender differs from ``base``: their workloads only where they share no corner."""
    pairs = [(contender, *_like(base, contender)) for contender in contenders]
    names = _variables([diff(_limitless(ours.spec), _limitless(theirs.spec)) for _, ours, theirs in pairs])
    asked = []
    for name in names:
        fields = _fields(name, [run.spec for _, ours, theirs in pairs for run in (ours, theirs)])
        values = [_value(theirs.spec, name, fields) for _, _, theirs in pairs]
        asked.append(_difference(name, _value(base.first.spec, name, fields), values))
    facts = [_facts(contender.first) for contender in contenders]
    ours = _facts(base.first)
    machine = [
        _difference(name, ours.get(name, MISSING), values)
        for name in dict.fromkeys(name for each in [ours, *facts] for name in each)
        if len({ours.get(name), *(each.get(name) for each in facts)}) > 1
        for values in [[each.get(name, MISSING) for each in facts]]
    ]
    same = ["same trace and batches"] if all(ours.schedule == theirs.schedule for _, ours, theirs in pairs) else []
    return Differs(asked, machine, [*same, *(["same machine"] if not machine else [])])


def _like(base: Contender, other: Contender) -> tuple[Measured, Measured]:
    """A run of each at a corner of both, or their first ones."""
    corner = next((corner for corner in other.runs if corner in base.runs), None)
    return (base.runs[corner], other.runs[corner]) if corner else (base.first, other.first)


def _limitless(spec: Spec) -> Spec:
    """Limits judge the latencies; they change none."""
    return spec.model_copy(update={"workload": spec.workload.model_copy(update={"limits": Limits()})})


def _variables(found: Sequence[Sequence[str]]) -> list[str]:
    """Every variable once; a field of a group that differs as a whole belongs to it."""
    names = dict.fromkeys(name for each in found for name in each)
    return [name for name in names if not any(group in names and name.startswith(f"{group}.") for group in GROUPS)]


def _fields(name: str, specs: Sequence[Spec]) -> list[str]:
    """The fields of a variable that differ among ``specs``: several of a group."""
    documents = [flat(spec.model_dump()) for spec in specs]
    return [
        each
        for each in documents[0]
        if f"{each}.".startswith(f"{name}.") and any(document[each] != documents[0][each] for document in documents)
    ]


def _value(spec: Spec, name: str, fields: Sequence[str]) -> str:
    document = flat(spec.model_dump())
    if fields == [name]:
        return label(document[name])
    values = {each.removeprefix(f"{name}."): document[each] for each in fields}
    return " ".join(f"{each}={label(value)}" for each, value in values.items() if value is not None) or label(None)


def _difference(name: str, before: str, values: list[str]) -> Difference:
    return Difference(name, before, [value for value in dict.fromkeys(values) if value != before], values)


def _facts(run: Measured) -> dict[str, str]:
    """What the machine was, and which computer of its kind."""
    found = fingerprints.facts(run.environment)
    return {"Computer": run.host, **found} if run.host else found
