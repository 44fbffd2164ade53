"""Which computers measure: each worker registers its own when it starts, and says from then on that it lives."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import F, Window
from django.db.models.functions import RowNumber

from webapp.experiments import launch
from webapp.experiments.models import Machine, clock

TIMEOUT_S = 120
#: How long after its last sign of life a worker counts as silent.
SILENT_AFTER = timedelta(seconds=60)
#: A computer that could not be looked at is looked at again.
AGAIN_S = 60.0

#: More states than this of one computer are not shown.
STATES = 50

log = logging.getLogger(__name__)


class Presence:
    """Registers this computer for a pool, then says each time that its worker lives."""

    def __init__(self, pool: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.pool, self.clock = pool, clock
        self.registered, self.look_at = False, clock()

    def tell(self) -> None:
        if not self.registered and self.clock() >= self.look_at:
            self.look_at = self.clock() + AGAIN_S
            self.registered = look_at_this(self.pool) is not None
        say_alive(self.pool)


def look_at_this(pool: str) -> Machine | None:
    """Ask the measuring program what this computer is and keep the answer. None, and a log line, where it can't say."""
    command = [*launch.PROGRAM, "machine", "--json"]
    try:
        said = subprocess.run(
            command, cwd=settings.BASE_DIR, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=True
        )
        return register_this(json.loads(said.stdout), pool)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        log.error("This machine is not registered: %s", error)
        return None


def register_this(details: dict[str, Any], pool: str) -> Machine:
    """The row of this computer in the state that ``details`` describe, seen now.

    ``details`` are what the program says about the machine, or a result's environment. That does not tell which
    backends can run, so what is known of them stays.
    """
    state = {"host": socket.gethostname(), "pool": pool, "fingerprint": details["fingerprint"]}
    known = Machine.objects.filter(**state).values_list("details", flat=True).first() or {}
    details = {name: known[name] for name in ("backends",) if name in known} | details
    machine, _ = Machine.objects.update_or_create(
        **state, defaults={"name": details["name"], "details": details, "last_seen": clock()}
    )
    machine.refresh_from_db(fields=["last_seen"])
    return machine


def say_alive(pool: str) -> None:
    """Note that the worker of ``pool`` on this computer lives now."""
    machine = of_this_worker(pool)
    if machine is not None:
        Machine.objects.filter(pk=machine.pk).update(last_seen=clock())


def of_this_worker(pool: str) -> Machine | None:
    """The state in which this computer last registered for ``pool``."""
    return Machine.objects.filter(pool=pool, host=socket.gethostname()).order_by("-last_seen").first()


def pools() -> list[str]:
    """The pools that workers have served, and the one that experiments go to unless told otherwise, by name."""
    seen = Machine.objects.order_by().values_list("pool", flat=True).distinct()
    return sorted({*seen, settings.MOESCOPE_POOL})


def of_pool(pool: str) -> list[Machine]:
    """The latest state of every computer that serves ``pool``."""
    return list(Machine.objects.filter(pool=pool).order_by("host", "-last_seen").distinct("host"))


def latest() -> list[Machine]:
    """The latest state of every computer in every pool, by pool and host, without details."""
    rows = Machine.objects.defer("details").order_by("pool", "host", "-last_seen")
    return list(rows.distinct("pool", "host"))


def history(machine: Machine) -> list[Machine]:
    """The latest `STATES` states of the computer in its pool, in the order in which they were first seen."""
    states = Machine.objects.filter(host=machine.host, pool=machine.pool).order_by("-last_seen", "-pk")[:STATES]
    return sorted(states, key=lambda state: (state.first_seen, state.pk))


def last_two() -> list[Machine]:
    """The two latest states of every computer in every pool, by pool and host, the one that was first seen first."""
    latest_first = Window(
        RowNumber(), partition_by=[F("pool"), F("host")], order_by=[F("last_seen").desc(), F("pk").desc()]
    )
    rows = Machine.objects.alias(place=latest_first).filter(place__lte=2)
    return sorted(rows, key=lambda state: (state.pool, state.host, state.first_seen, state.pk))


def is_silent(machine: Machine, now: datetime) -> bool:
    """Whether its worker should have been heard of by now."""
    return now - machine.last_seen > SILENT_AFTER
