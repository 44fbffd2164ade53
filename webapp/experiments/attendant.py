"""What a worker does beside measuring, in a thread of the process that runs its tasks.

It registers its machine and says that it lives. It also sweeps by itself: the sweep that beat asks for is a message
like any other, which waits while every worker measures and is lost with the broker, so nothing is stuck as long as one
worker lives. All that a worker has to do with the database happens in this process: its parent forks a new one when it
dies, and a connection does not survive a fork.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from django.conf import settings
from django.db import connection

from webapp.experiments import machines, queue
from webapp.experiments.recover import recover

#: A round that takes so much longer than it should is a sign that this computer slept.
LATE_S = 30.0

#: What rooms above this one want done in each round; see `HistoryConfig`.
DUTIES: list[Callable[[], object]] = []

log = logging.getLogger(__name__)


def start() -> None:
    threading.Thread(target=_attend, name="attendant", daemon=True).start()


def _attend() -> None:
    presence = machines.Presence(settings.MOESCOPE_POOL)
    #: The last round came in time and reached the database. Otherwise others may have been silent for the same reason,
    #: a computer asleep or a database away, and get a round's time to be heard again.
    watchful = False
    while True:
        began = time.time()
        done(recover)
        watchful = done(queue.sweep if watchful else queue.wake_waiting)
        done(presence.tell)
        for duty in DUTIES:
            done(duty)
        connection.close()
        time.sleep(settings.SWEEP_S)
        watchful = watchful and time.time() - began < settings.SWEEP_S + LATE_S


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
