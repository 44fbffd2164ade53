"""What a worker does beside measuring, in a thread of the process that runs its tasks.

The sweep that beat asks for is a message like any other: it waits while every worker measures, and it is lost with
the broker. So each worker also sweeps by itself, and nothing is stuck as long as one worker lives. All that a worker
has to do with the database happens in this process: its parent forks a new one when it dies, and a connection does
not survive a fork.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from django.conf import settings
from django.db import connection

from webapp.experiments import machines, queue
from webapp.experiments.recover import recover

log = logging.getLogger(__name__)


def start() -> None:
    threading.Thread(target=_attend, name="attendant", daemon=True).start()


def _attend() -> None:
    register = partial(machines.look_at_this, settings.MOESCOPE_POOL)
    registered = False
    while True:
        done(recover)
        done(queue.sweep)
        registered = registered or done(register)
        connection.close()
        time.sleep(settings.SWEEP_S)


def done(duty: Callable[[], object]) -> bool:
    """Do it; False, and a line in the log, where that fails. The thread goes on: the next round tries again."""
    try:
        duty()
    except queue.AWAY as error:
        log.warning("The database is away: %s", error)
        return False
    except Exception:
        log.exception("A duty of the worker failed")
        return False
    return True
