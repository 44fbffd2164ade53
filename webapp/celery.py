"""The task queue. A message only wakes a worker; the experiment's row is the truth, so nothing is kept here."""

import os
import signal
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_process_init
from kombu import Exchange, Queue

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")

from django.conf import settings

from webapp import alive, processes

#: What any worker may do, whatever its pool: no pool's name has a colon.
ANY_POOL = "any:pool"

app = Celery("moescope")
app.conf.update(
    broker_url=settings.BROKER_URL or None,
    task_default_queue=settings.MOESCOPE_POOL,
    task_queues=[Queue(name, Exchange(name), name) for name in (settings.MOESCOPE_POOL, ANY_POOL)],
    task_routes={"webapp.experiments.tasks.sweep": {"queue": ANY_POOL}},
    accept_content=["json"],
    task_serializer="json",
    task_ignore_result=True,
    task_acks_late=False,
    worker_prefetch_multiplier=1,
    worker_concurrency=1,
    timezone="UTC",
    enable_utc=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    beat_schedule={
        "sweep": {"task": "webapp.experiments.tasks.sweep", "schedule": 10.0, "options": {"expires": 10}},
    },
    beat_schedule_filename=str(settings.MOESCOPE_DATA / "beat" / "schedule"),
)
if settings.MOESCOPE_ALIVE:
    alive.tell(app, Path(settings.MOESCOPE_ALIVE))
app.set_default()
app.autodiscover_tasks()


@worker_process_init.connect
def _end_with_the_worker(**kwargs: Any) -> None:
    """The child that runs tasks goes when the worker's main process is killed, and the experiment with it."""
    processes.tie_to_parent(signal.SIGKILL, os.getppid())
