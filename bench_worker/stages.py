"""The stages' clock. One code path for CPU and CUDA: a mark ends the stage that ran since the mark before it.

A mark is an event record on CUDA (read once, after the step) and one ``perf_counter_ns`` on the CPU; nothing else
stands between two stages. The layer's code makes ``inner`` marks at the end of each of its stages and ``outer`` marks
at the end of the layer and of the parts around it. `StageClock` keeps both, so it tells the stages apart;
`WholeClock` keeps the outer ones only, so it times the same layer as one piece.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

from bench_worker.scaling import UNTIMED

#: Name of the outer mark at the end of a MoE layer.
LAYER = "layer"


class Clock(Protocol):
    def begin(self) -> None: ...

    def inner(self, name: str) -> None: ...

    def outer(self, name: str) -> None: ...

    def read(self) -> dict[str, float]: ...


class StageClock:
    """Keeps every mark. `read` gives the time of each name in µs, summed over its marks since `begin`."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._names: list[str] = []
        self._times: list[int] = []
        self._events: list[torch.cuda.Event] = []

    def begin(self) -> None:
        self._names.clear()
        self._times.clear()
        self._mark()

    def inner(self, name: str) -> None:
        self._names.append(name)
        self._mark()

    outer = inner

    def read(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for name, span in self.spans():
            if name != UNTIMED:
                total[name] = total.get(name, 0.0) + span
        return total

    def spans(self) -> list[tuple[str, float]]:
        """Each mark since `begin` with the time in µs since the one before it, in order."""
        if self._cuda:
            torch.cuda.synchronize()
            pairs = zip(self._events, self._events[1 : len(self._names) + 1], strict=False)
            times = [start.elapsed_time(end) * 1e3 for start, end in pairs]
        else:
            times = [(end - start) / 1e3 for start, end in zip(self._times, self._times[1:], strict=False)]
        return list(zip(self._names, times, strict=True))

    def _mark(self) -> None:
        if not self._cuda:
            self._times.append(time.perf_counter_ns())
            return
        place = len(self._names)
        if place == len(self._events):  # events are kept and reused from step to step
            self._events.append(torch.cuda.Event(enable_timing=True))
        self._events[place].record()


class HostClock(StageClock):
    """Reads the host's clock on CUDA, too, where every mark waits for the device: only so can marks of several
    processes be compared, since events of two devices can't."""

    def __init__(self, device: torch.device, sign: Callable[[str], None] = lambda _: None) -> None:
        """``sign`` hears of every stage that has ended."""
        super().__init__(torch.device("cpu"))
        self._waits, self._sign = device.type == "cuda", sign

    @property
    def start_us(self) -> float:
        """When `begin` was called, on the monotonic clock of this host."""
        return self._times[0] / 1e3

    def _mark(self) -> None:
        if self._waits:
            torch.cuda.synchronize()
        super()._mark()
        self._sign(self._names[-1] if self._names else UNTIMED)


class WholeHostClock(HostClock):
    """As `HostClock`, with the outer marks only."""

    def inner(self, name: str) -> None:
        pass

    outer = StageClock.inner


class WholeClock(StageClock):
    """Keeps outer marks only: the time since the last outer mark goes to the next one as a whole."""

    def inner(self, name: str) -> None:
        pass

    outer = StageClock.inner


class NoClock:
    """Keeps no mark: for work that is not timed, or timed from outside."""

    def begin(self) -> None:
        pass

    def inner(self, name: str) -> None:
        pass

    def outer(self, name: str) -> None:
        pass

    def read(self) -> dict[str, float]:
        return {}
