"""What Celery runs. A message says only "look": the work stands in the rows."""

from __future__ import annotations

import mmap
import threading
from typing import Any

from celery import shared_task
from celery.signals import worker_ready, worker_shutting_down
from django.conf import settings

from webapp.experiments import machines, pulse, queue, upkeep
from webapp.experiments.perform import perform

#: One byte that the worker's main process shares with the child that it forks to run tasks.
_shutting_down = mmap.mmap(-1, 1)
_stop_telling = threading.Event()


@shared_task(name="webapp.experiments.tasks.work")
def work() -> None:
    """Carry out the oldest queued experiment of this worker's pool, then pass the wake-up on if more wait."""
    pool = settings.MOESCOPE_POOL
    if is_shutting_down():
        return
    row = queue.claim(pool, machines.of_this_worker(pool))
    if row is None:
        return
    perform(row, is_shutting_down)
    queue.wake_waiting(pool)


@shared_task(name=pulse.SWEEP)
def sweep() -> None:
    """See `queue.sweep` and `upkeep.purge`; beat sends it every few seconds."""
    queue.sweep()
    upkeep.purge()


def is_shutting_down() -> bool:
    return _shutting_down[0] == 1


@worker_shutting_down.connect
def _tell_the_child(**kwargs: Any) -> None:
    _shutting_down[0] = 1
    _stop_telling.set()


@worker_ready.connect
def _tell_that_it_lives(**kwargs: Any) -> None:
    """In a thread: the worker takes experiments while the measuring program looks at the machine."""
    arguments = (settings.MOESCOPE_POOL, _stop_telling)
    threading.Thread(target=machines.attend, args=arguments, name="sign-of-life", daemon=True).start()
