"""What Celery runs. A message says only "look": the work stands in the rows."""

from __future__ import annotations

import mmap
from typing import Any

from celery import shared_task
from celery.signals import worker_init, worker_process_init, worker_shutting_down
from django.conf import settings

from webapp.experiments import attempts, attendant, pulse, queue, upkeep
from webapp.experiments.perform import perform_next

#: One byte that the worker's main process shares with the child that it forks to run tasks.
_shutting_down = mmap.mmap(-1, 1)


@shared_task(name="webapp.experiments.tasks.work")
def work() -> None:
    """Carry out the oldest queued experiment of this worker's pool, then pass the wake-up on if more wait."""
    if is_shutting_down():
        return
    pool = settings.MOESCOPE_POOL
    if perform_next(pool, is_shutting_down):
        queue.wake_waiting(pool)


@shared_task(name=pulse.SWEEP)
def sweep() -> None:
    """Beat sends it every few seconds. Whose worker was lost is for `attendant` to judge, which knows how long it has
    been watching."""
    queue.wake_waiting()
    upkeep.purge()


def is_shutting_down() -> bool:
    return _shutting_down[0] == 1


@worker_shutting_down.connect
def _tell_the_child(**kwargs: Any) -> None:
    _shutting_down[0] = 1


@worker_init.connect
def _refuse_without_a_place(**kwargs: Any) -> None:
    attempts.refuse_without_a_place()


@worker_process_init.connect
def _attend(**kwargs: Any) -> None:
    attendant.start()
