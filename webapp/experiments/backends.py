"""Which expert kernels the machines of a pool can run, by what their workers reported and what is asked of them. Pure.

A report is ``backends`` of a machine's details: for each value of ``kernels.experts`` and of ``kernels.fusion`` why the
two can't run there, or null where they can. A machine without one is taken to run everything; its worker will say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench_worker.kernels import rules
from bench_worker.kernels.rules import bare
from bench_worker.spec import Experiment, Spec, SpecError

Report = Mapping[str, Mapping[str, str | None]]


class Missing(NamedTuple):
    """A value of the form's ``field`` that can't run on ``machines`` of the pool's, and why."""

    field: str
    value: str
    reason: str
    machines: int
    everywhere: bool
    chosen: bool


def reports(machines: Sequence[Mapping[str, Any]]) -> list[Report]:
    """The report of each machine, from its details."""
    return [details.get("backends", {}) for details in machines]


def for_spec(report: Report, spec: Spec) -> Report:
    """``report`` less what the model or the routing of ``spec`` keeps from being computed on any machine."""
    asked = {
        name: {way: rules.refusal(name, rules.with_kernels(spec, experts=name, fusion=way)) for way in rules.FUSIONS}
        for name in rules.RULES
    }
    return {
        name: {way: report.get(name, {}).get(way) or asked.get(name, {}).get(way) for way in rules.FUSIONS}
        for name in dict.fromkeys((*report, *asked))
    }


def missing(reports: Sequence[Report], experts: str, fusion: str) -> list[Missing]:
    """What can't run on some machine or on any: backends, and fusions of the backend that is chosen."""
    found = []
    for name in dict.fromkeys(name for report in reports for name in report):
        # a backend is missing where it can run with no fusion at all
        reasons = [next(iter(ways.values())) for report in reports if (ways := report.get(name)) and all(ways.values())]
        if reasons:
            found.append(_missing("experts", name, reasons, len(reports), name == experts))
    if any(one.value == experts and one.everywhere for one in found):
        return found
    for way in dict.fromkeys(way for report in reports for way in report.get(experts, {})):
        reasons = [reason for report in reports if (reason := report.get(experts, {}).get(way))]
        if len(reasons) == len(reports):
            found.append(_missing("fusion", way, reasons, len(reports), way == fusion))
    return found


def _missing(field: str, value: str, reasons: Sequence[str | None], machines: int, chosen: bool) -> Missing:
    return Missing(field, value, bare(reasons[0] or ""), len(reasons), len(reasons) == machines, chosen)


def refuse(experiment: Experiment, reports: Sequence[Report]) -> None:
    """Raise `SpecError`, in the measuring program's words, for the first variant that no machine can run.

    Without any report only what no machine at all could run is refused."""
    varied = experiment.vary.field if experiment.vary else None
    for _, spec in experiment.variants():
        kernels = spec.kernels
        possible = [for_spec(report, spec) for report in reports or [{}]]
        reasons = [report.get(kernels.experts, {}).get(kernels.fusion) for report in possible]
        if not all(reasons):
            continue
        field, _, message = (reasons[0] or "").partition(": ")
        value = getattr(kernels, field.removeprefix("kernels."), kernels.experts)
        raise SpecError("vary.values" if field == varied else f"base.{field}", value, message)
