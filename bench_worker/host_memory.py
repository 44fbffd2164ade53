"""The memory of this computer, within the limits of the control group (container) that this process is in. Torch-free.

Every function takes ``root``, under which the system's own files lie (``/proc``, ``/sys``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

SYSTEM = Path("/")


@dataclass(frozen=True)
class _Names:
    """What a version of control groups calls its files, and a group's name for reclaimable file pages."""

    limit: str
    used: str
    events: str
    reclaimable: str


_V2 = _Names("memory.max", "memory.current", "memory.events", "inactive_file")
_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control", "total_inactive_file")
#: Version 1 has no word for "unlimited"; it shows the largest count of pages.
_UNLIMITED = 1 << 60


def total_bytes(root: Path = SYSTEM) -> int:
    """Memory of the computer, or of the smallest control group around this process."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _limits(root))])


def available_bytes(root: Path = SYSTEM) -> int:
    """Memory that this process and its children may still take."""
    return min([psutil.virtual_memory().available, *(limit - used for limit, used in _limits(root))])


def oom_kills(root: Path = SYSTEM) -> int | None:
    """How many processes the system has killed for want of memory: of this control group, or else of the computer.

    None where it does not tell.
    """
    for directory, names in _groups(root):
        if (count := _figure(directory / names.events, "oom_kill")) is not None:
            return count
    return _figure(root / "proc/vmstat", "oom_kill")


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use, in bytes, of each control group around this process that has a limit.

    Pages of files that nobody uses now count as free: the system takes them back when memory is asked for.
    """
    for directory, names in _groups(root):
        limit, used = _number(directory / names.limit), _number(directory / names.used)
        if limit is not None and used is not None and limit < _UNLIMITED:
            yield limit, used - (_figure(directory / "memory.stat", names.reclaimable) or 0)


def _groups(root: Path) -> Iterator[tuple[Path, _Names]]:
    """The memory groups around this process, its own first.

    A container sees its own group at the mount point, whatever the path that the kernel reports.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, names = root / "sys/fs/cgroup", _V2
        elif "memory" in controllers.split(","):
            mount, names = root / "sys/fs/cgroup/memory", _V1
        else:
            continue
        own = mount / path.lstrip("/")
        for directory in (own, *own.parents):
            if directory.is_dir():
                yield directory, names
            if directory == mount:
                break


def _figure(file: Path, name: str) -> int | None:
    """The number after ``name`` in a file of ``name number`` lines."""
    for line in _text(file).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return None


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdecimal() else None  # "max": unlimited


def _text(file: Path) -> str:
    """Its content, or nothing where the system has no such file or keeps it to itself."""
    try:
        return file.read_text()
    except OSError:
        return ""
