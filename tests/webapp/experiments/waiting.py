"""Waiting for something to happen, without hoping that it has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psutil

#: What takes longer will not happen: far above what anything here takes, even where other tests hold the processors.
LONG_S = 60.0


def wait_until(happened: Callable[[], bool], within_s: float = LONG_S) -> bool:
    """True as soon as ``happened``; False if it has not after ``within_s``.

    What takes long is looked at less often: each look takes processor time from what it waits for.
    """
    pause, began = threading.Event(), time.monotonic()
    while not happened():
        waited_s = time.monotonic() - began
        if waited_s > within_s:
            return False
        pause.wait(min(max(0.01, waited_s / 10), 0.1))
    return True


def is_gone(pid: int, within_s: float = LONG_S) -> bool:
    """True as soon as no process of this number does anything any more."""

    def ended() -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return wait_until(ended, within_s)
