"""What the pages of machines read from the database, in a constant number of queries each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple

from django.utils import timezone

from webapp.experiments import fingerprints, machines
from webapp.experiments.models import HELD, Experiment, Machine

RECENT = 8


class MachineNow(NamedTuple):
    """A machine with what it measures, or None, and whether its worker is silent."""

    machine: Machine
    measures: Experiment | None
    silent: bool


def machine_lines(running: Sequence[Experiment], now: datetime) -> list[MachineNow]:
    """Every machine in its latest state, with what of ``running`` it measures."""
    measured = {(row.machine.host, row.machine.pool): row for row in running if row.machine}
    return [
        MachineNow(machine, measured.get((machine.host, machine.pool)), machines.is_silent(machine, now))
        for machine in machines.latest()
    ]


def machine(chosen: Machine) -> dict[str, Any]:
    """What one state of a machine is, what changed before and after it, and what was measured on the machine."""
    now = timezone.now()
    states = machines.history(chosen)
    latest = max(states, key=lambda state: state.last_seen)
    here = Experiment.objects.visible().listed().filter(machine__host=chosen.host, machine__pool=chosen.pool)
    running = here.filter(state__in=HELD).first()
    return {
        "machine": chosen,
        "latest": latest,
        "silent": machines.is_silent(latest, now),
        "measures": running,
        "facts": fingerprints.facts(chosen.details),
        "conditions": fingerprints.conditions(chosen.details),
        "steps": fingerprints.timeline(states),
        "since": min(state.first_seen for state in states),
        "recent": here.filter(finished_at__isnull=False).order_by("-finished_at")[:RECENT],
    }


def machine_list() -> dict[str, Any]:
    """Every machine in its latest state, with what it measures and what changed last."""
    running = Experiment.objects.visible().listed().filter(state__in=HELD)
    lines = machine_lines(list(running), timezone.now())
    last = {
        (pool, host): fingerprints.timeline(list(states))
        for (pool, host), states in groupby(machines.last_two(), key=lambda state: (state.pool, state.host))
    }
    return {"rows": [(line, next(iter(last[line.machine.pool, line.machine.host]), None)) for line in lines]}
