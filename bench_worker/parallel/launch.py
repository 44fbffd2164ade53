"""Starts the ranks of a distributed run through torchrun's agent, and watches over them.

The agent (torch.distributed.elastic) starts the ranks of this host, gathers hosts at a rendezvous, and ends all ranks
when one has ended badly. A rank that hangs it does not see: the ranks' own signs of life tell, see
`bench_worker.parallel.trail`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench_worker.errors import SpecError
from bench_worker.parallel import trail
from bench_worker.parallel.trail import Pace
from bench_worker.parallel.world import SIGNS

__all__ = ["Hosts", "RanksFailed", "launch", "parse_address"]

#: Without a sign of any rank for so long, or with a process that has not run for so long, a rank hangs.
HANGS_AFTER_S = 20.0
#: The same while any rank still loads its libraries, and has given no sign but its first.
STARTS_WITHIN_S = 120.0
#: An experiment that solves the balanced assignment exactly may be silent this long.
EXACT_SOLVER_S = 600.0
#: How long the hosts wait for one another.
RENDEZVOUS_S = 25.0
#: How long ranks may take from TERM to their end before they are killed.
PATIENCE_S = 3
LOOK_S = 0.5


@dataclass(frozen=True)
class Hosts:
    """``count`` hosts, of which this is number ``own``; they meet at ``address``:``port``, which is on host 0."""

    count: int = 1
    own: int = 0
    address: str = "127.0.0.1"
    port: int = 0


class RanksFailed(RuntimeError):
    """Ranks ended before their work was done. ``code``: the exit code that tells why, as of one rank alone."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class _Watch:
    """Looks at the signs of the ranks in ``folder`` until ``done``; where one hangs, it kills all of them."""

    folder: Path
    ranks: Sequence[int]
    hangs_after_s: float
    hung: str = ""
    done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        began, suspected = time.monotonic(), False
        while not self.done.wait(LOOK_S):
            signs = {rank: sign for rank in self.ranks if (sign := trail.read(self.folder / str(rank))) is not None}
            found = hang(self.ranks, signs, began, time.monotonic(), self.hangs_after_s)
            if not (found and suspected):  # a single look may fall into the middle of a sign
                suspected = bool(found)
                continue
            self.hung = found
            for pid in {sign.pid for sign in signs.values() if sign.pace != Pace.ENDED}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # a stopped process hears nothing else
            if len(signs) < len(self.ranks):
                os.kill(os.getpid(), signal.SIGTERM)  # the agent ends those that are not known yet
            return


def hang(
    ranks: Sequence[int], signs: Mapping[int, trail.Sign], began_s: float, now_s: float, hangs_after_s: float
) -> str:
    """Which of ``ranks`` hangs at ``now_s``, in words; empty where none does. ``began_s``: when they were started.

    A rank hangs if its process has not run for ``hangs_after_s``, whatever it does. And if no rank has given a sign for
    so long, the one for which the others wait does, unless any works in silence (`trail.Pace`): then they wait for it.
    """
    left = [rank for rank in ranks if rank not in signs or signs[rank].pace != Pace.ENDED]
    for rank, sign in signs.items():
        if rank in left and (still_s := now_s - sign.alive_s) >= hangs_after_s:
            return f"Rank {rank} hangs: its last sign was {sign.last}, and its process has not run for {still_s:.0f} s"
    if not left or any(sign.pace == Pace.SILENCE for sign in signs.values()):
        return ""
    silent_s = now_s - max([began_s, *(sign.at_s for sign in signs.values())])
    all_started = all(rank in signs and signs[rank].signs > 1 for rank in left)
    if silent_s < (hangs_after_s if all_started else max(hangs_after_s, STARTS_WITHIN_S)):
        return ""
    rank = behind(left, signs, now_s)
    where = f"its last sign was {signs[rank].last}" if rank in signs else "it gave no sign"
    return f"Rank {rank} hangs: {where}, and no rank has come further for {silent_s:.0f} s"


def behind(ranks: Sequence[int], signs: Mapping[int, trail.Sign], now_s: float) -> int:
    """The rank for which the others wait: one that was never heard of, one whose process doesn't even run, or the one
    that has come least far, since all give the same signs in the same order."""

    def order(rank: int) -> tuple[bool, int]:
        if (sign := signs.get(rank)) is None:
            return False, -1
        return now_s - sign.alive_s < 3 * trail.ALIVE_EVERY_S, sign.signs

    return min(ranks, key=order)


def launch(arguments: Sequence[str], ranks: int, hosts: Hosts, hangs_after_s: float = HANGS_AFTER_S) -> None:
    """Run ``python -m bench_worker`` with ``arguments`` as ``ranks`` ranks, equally many on each host, to their end.

    Raises `RanksFailed` where they did not all end well, naming the rank and the last stage that it finished; nothing
    of them is left then. Raises `SpecError` where hosts do not divide ranks or do not come together.
    """
    if ranks % hosts.count:
        raise SpecError("--nnodes", hosts.count, f"{hosts.count} hosts do not divide the {ranks} ranks (tp · dp)")
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # what it tells, we tell
    local = ranks // hosts.count
    own = range(hosts.own * local, (hosts.own + 1) * local)
    with tempfile.TemporaryDirectory(prefix="moescope-ranks-") as folder:
        os.environ[SIGNS] = folder
        watch = _Watch(Path(folder), own, hangs_after_s)
        watcher = threading.Thread(target=watch.run, daemon=True)
        watcher.start()
        try:
            elastic_launch(_config(local, hosts), sys.executable)("-m", "bench_worker", *arguments)
        except ChildFailedError as error:
            raise _failure(watch, {f.local_rank + own.start: f.exitcode for f in error.failures.values()}) from None
        except SignalException:
            raise RanksFailed(*((1, watch.hung) if watch.hung else (130, "canceled"))) from None
        except (ConnectionError, TimeoutError, RuntimeError) as error:
            if hosts.count == 1:
                raise
            place = f"{hosts.address}:{hosts.port}"
            message = f"the {hosts.count} hosts did not come together at {place} within {RENDEZVOUS_S:.0f} s"
            raise SpecError("--rdzv", place, f"{message} ({str(error).splitlines()[0]})") from None
        finally:
            watch.done.set()
            watcher.join()
            del os.environ[SIGNS]


def _config(local: int, hosts: Hosts):  # type: ignore[no-untyped-def]  # LaunchConfig, which only torch knows
    from torch.distributed.launcher.api import LaunchConfig

    one = hosts.count == 1
    return LaunchConfig(
        min_nodes=hosts.count,
        max_nodes=hosts.count,
        nproc_per_node=local,
        run_id=f"moescope-{hosts.port or os.getpid()}",
        rdzv_backend="c10d" if one else "static",
        rdzv_endpoint="localhost:0" if one else f"{hosts.address}:{hosts.port}",
        rdzv_configs={"timeout": RENDEZVOUS_S} if one else {"rank": hosts.own, "timeout": RENDEZVOUS_S},
        max_restarts=0,
        shutdown_timeout=PATIENCE_S,
    )


def _failure(watch: _Watch, codes: dict[int, int]) -> RanksFailed:
    """Of the ranks that ended badly, the first: killed before those that missed it, and behind before ahead."""
    if watch.hung:
        return RanksFailed(1, watch.hung)
    signs = {rank: sign for rank in codes if (sign := trail.read(watch.folder / str(rank))) is not None}
    rank = min(codes, key=lambda rank: (codes[rank] > 0, signs[rank].signs if rank in signs else -1))
    code, sign = codes[rank], signs.get(rank)
    if sign is not None and sign.error:
        return RanksFailed(code, sign.error)
    how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
    where = f"its last sign was {sign.last}" if sign else "before its first sign"
    return RanksFailed(1, f"Rank {rank} {how}: {where}")


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``. Raises `SpecError`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65_535:
        raise SpecError("--rdzv", text, f"{text!r} is not HOST:PORT, with a port from 1 to 65535")
    return host, int(port)
