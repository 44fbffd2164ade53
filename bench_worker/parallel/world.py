"""One rank of a distributed run: its place among the others, its processors or its GPU, and what it agrees on."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from bench_worker import host
from bench_worker.errors import SpecError, Unavailable
from bench_worker.parallel.trail import Pace, Trail

__all__ = [
    "SIGNS",
    "Alone",
    "Place",
    "World",
    "come_together",
    "pin",
    "place_of_this_process",
    "tie_to_launcher",
    "trail_of",
]

#: Names the folder of the ranks' signs of life, in their environment.
SIGNS = "MOESCOPE_SIGNS"
#: A rank that another waits for longer than this has gone. The launcher sees it sooner.
TIMEOUT = timedelta(seconds=300)


@dataclass(frozen=True)
class Place:
    """As torchrun and the DeepSpeed launcher tell it: of ``size`` ranks, and of ``local_size`` on this host."""

    rank: int
    size: int
    local_rank: int
    local_size: int


class Alone:
    """A process that measures by itself: it agrees with itself, and nobody watches it for signs."""

    is_first = True
    #: Numbers of those that it may run on.
    processors: Collection[int] = host.PROCESSORS

    def agree(self, told: bool) -> bool:
        return told

    def phase(self, text: str, pace: Pace = Pace.STEPS) -> None:
        pass

    def sign(self, what: str = "") -> None:
        pass

    def members(self, tp: int) -> Sequence[int]:
        return range(tp)


@dataclass
class World:
    """The ranks that measure together. ``trail`` is None where nobody watches."""

    place: Place
    trail: Trail | None

    @property
    def is_first(self) -> bool:
        return self.place.rank == 0

    @property
    def processors(self) -> Collection[int]:
        """As `pin` took them."""
        return share_of(self.place)

    def phase(self, text: str, pace: Pace = Pace.STEPS) -> None:
        """What this rank does now: a step, or other work, which takes as long as it takes."""
        if self.trail is not None:
            self.trail.phase(text, pace)

    def sign(self, what: str = "") -> None:
        """This rank has come so far in it."""
        if self.trail is not None:
            self.trail.sign(what)

    def members(self, tp: int) -> Sequence[int]:
        """The members of a tensor-parallel group of ``tp`` ranks that this process is."""
        return (self.place.rank % tp,)

    def agree(self, told: bool) -> bool:
        """Whether any rank says so. All ranks call this, in the same order of calls."""
        import torch
        import torch.distributed as dist

        flag = torch.tensor(int(told), device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())


def place_of_this_process() -> Place | None:
    """None where no launcher has started this process as a rank."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    local_size = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE")  # torchrun; DeepSpeed
    return Place(rank, size, local_rank, int(local_size or size))


def tie_to_launcher() -> None:
    """Let the system end this rank with the process that started it (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def pin(place: Place) -> None:
    """Take this rank's share of the processors, before torch loads and makes its threads there. Where there are more
    ranks than processors, some share one."""
    if not hasattr(os, "sched_setaffinity"):
        return
    os.sched_setaffinity(0, share_of(place))


def share_of(place: Place) -> list[int]:
    """Numbers of the processors that are this rank's."""
    processors = sorted(host.PROCESSORS)
    share = max(1, len(processors) // place.local_size)
    first = place.local_rank * share % len(processors)
    return processors[first : first + share]


def trail_of(place: Place) -> Trail | None:
    """Where this rank gives its signs; None where no launcher of ours watches."""
    folder = os.environ.get(SIGNS)
    return Trail(Path(folder) / str(place.rank), os.getpid()) if folder else None


@contextmanager
def come_together(place: Place, ranks: int, field: str, trail: Trail | None) -> Iterator[World]:
    """This rank among the others, from when all have come together to its end. Raises `SpecError` where ``field`` asks
    for another number of ``ranks`` than were started, and `Unavailable` where this host has no GPU for one of its."""
    import torch
    import torch.distributed as dist

    if place.size != ranks:
        raise SpecError(field, ranks, f"{ranks} ranks are asked for, and {place.size} were started")
    cuda = torch.cuda.is_available()
    if cuda:
        refuse_more_ranks_than_devices(place.local_size, torch.cuda.device_count())
        torch.cuda.set_device(place.local_rank)
    dist.init_process_group("nccl" if cuda else "gloo", timeout=TIMEOUT)
    try:
        yield World(place, trail)
    finally:
        dist.destroy_process_group()


def refuse_more_ranks_than_devices(ranks: int, devices: int) -> None:
    """Raise `Unavailable` where GPUs are too few for the ranks of this host."""
    if ranks > devices:
        raise Unavailable(
            f"parallel.layout: {ranks} ranks on this host need as many GPUs, and it has {devices}; use fewer ranks, "
            "more nodes, or virtual"
        )
