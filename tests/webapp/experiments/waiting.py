"""Waiting for something to happen, without hoping that it has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psutil


def wait_until(happened: Callable[[], bool], within_s: float = 10) -> bool:
    """True as soon as ``happened``; False if it has not after ``within_s``."""
    pause, deadline = threading.Event(), time.monotonic() + within_s
    while not happened():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.01)
    return True


def is_gone(pid: int, within_s: float = 10) -> bool:
    """True as soon as no process of this number does anything any more."""

    def ended() -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return wait_until(ended, within_s)
