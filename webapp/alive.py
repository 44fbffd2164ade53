"""Signs of life for health checks: a file that is touched as long as its program does its work.

A worker touches it from its event loop while it is connected to the broker; beat whenever it has sent a message. To
look at the file's age costs nothing, where asking a worker over the broker would disturb what it measures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery import Celery, bootsteps
from celery.signals import after_task_publish, beat_init
from celery.worker.consumer import Tasks

EVERY_S = 10.0


def tell(app: Celery, file: Path) -> None:
    """Have ``app``'s worker or beat, whichever this process becomes, touch ``file`` about every `EVERY_S` seconds."""

    class SignOfLife(bootsteps.StartStopStep):
        """Part of the worker's loop from connection to connection."""

        requires = (Tasks,)

        def start(self, consumer: Any) -> None:
            file.touch()
            self.timer = consumer.timer.call_repeatedly(EVERY_S, file.touch)

        def stop(self, consumer: Any) -> None:
            self.timer.cancel()

    def of_beat(**kwargs: Any) -> None:
        after_task_publish.connect(lambda **kwargs: file.touch(), weak=False)

    app.steps["consumer"].add(SignOfLife)
    beat_init.connect(of_beat, weak=False)
