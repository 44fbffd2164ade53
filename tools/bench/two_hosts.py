"""Two network namespaces that stand for two hosts, joined by one wire whose rate can be limited (Linux, as root)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

__all__ = ["Host", "limit", "ranks_say", "sent_bytes", "two_hosts", "why_not"]

_PAIRS = count()


@dataclass(frozen=True)
class Host:
    """``name`` of its namespace; ``interface`` has ``address`` on the wire to the other one."""

    name: str
    interface: str
    address: str

    def start(self, command: Sequence[str], **kwargs: object) -> subprocess.Popen[str]:
        """Run ``command`` on this host, with gloo on the wire."""
        environment = os.environ | {"GLOO_SOCKET_IFNAME": self.interface}
        return subprocess.Popen(  # type: ignore[call-overload]
            ["ip", "netns", "exec", self.name, *command], env=environment, text=True, **kwargs
        )


def why_not() -> str | None:
    """Why there can be no two hosts here, in one sentence; None where there can."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "ip and tc (iproute2) are not installed"
    name = f"moescope-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"network namespaces are not allowed here: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Both hosts; they are gone afterwards, with their wire. What was started on them must have ended."""
    number = f"{os.getpid()}-{next(_PAIRS)}"
    first, second = (Host(f"ms{number}{end}", f"wire{end}", f"10.77.0.{place}") for place, end in enumerate("ab", 1))
    try:
        for host in (first, second):
            _ip("netns", "add", host.name)
        _ip(
            "link", "add", first.interface, "netns", first.name, "type", "veth",
            "peer", "name", second.interface, "netns", second.name,
        )  # fmt: skip
        for host in (first, second):
            _ip("-n", host.name, "addr", "add", f"{host.address}/30", "dev", host.interface)
            for interface in ("lo", host.interface):
                _ip("-n", host.name, "link", "set", interface, "up")
        yield first, second
    finally:
        for host in (first, second):
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)


def limit(hosts: Sequence[Host], rate: str) -> None:
    """Let each host send at ``rate`` at most (a token bucket, as ``tc`` writes it: 200mbit).

    Both ways are busy at once, and acknowledgements queue behind rows; so TCP keeps its window over the pauses between
    exchanges, else it would have to find the rate anew each time.
    """
    for host in hosts:
        _ip("netns", "exec", host.name, "sysctl", "-w", "net.ipv4.tcp_slow_start_after_idle=0")
        subprocess.run(
            ["ip", "netns", "exec", host.name, "tc", "qdisc", "replace", "dev", host.interface, "root", "tbf",
             "rate", rate, "burst", "32kb", "latency", "400ms"],
            check=True,
        )  # fmt: skip


def ranks_say(hosts: Sequence[Host], module: str, *arguments: str) -> list[Any]:
    """What two ranks print, as JSON: one on each host runs ``module`` with the first of ``arguments``, the address
    where they meet, its interface, its number and the rest."""
    first, *rest = arguments
    meet = f"tcp://{hosts[0].address}:29511"
    started = [
        host.start(
            [sys.executable, "-m", module, first, meet, host.interface, str(rank), *rest], stdout=subprocess.PIPE
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        said = [one.communicate(timeout=300)[0] for one in started]
    finally:
        for one in started:
            one.kill()
            one.wait()
    return [json.loads(text) for text in said]


def sent_bytes(interface: str) -> int:
    """That left this host over ``interface`` so far, headers included."""
    return int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
