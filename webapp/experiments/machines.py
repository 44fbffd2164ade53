"""Which computers measure: each worker registers its own when it starts."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
from typing import Any

from django.conf import settings
from django.utils import timezone

from webapp.experiments import launch
from webapp.experiments.models import Machine

TIMEOUT_S = 120

log = logging.getLogger(__name__)


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
    """The row of this computer in the state that ``details`` (a result's environment) describe, seen now."""
    seen = {
        "name": details["name"],
        "host": socket.gethostname(),
        "pool": pool,
        "details": details,
        "last_seen": timezone.now(),
    }
    machine, _ = Machine.objects.update_or_create(fingerprint=details["fingerprint"], defaults=seen)
    return machine


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
