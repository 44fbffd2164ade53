"""How this process keeps memory, kernels and threads. Torch-free, since it must be settled before torch loads."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench_worker.host import PROCESSORS

#: glibc asks the kernel for pages of 2 MB (transparent huge pages) behind everything that it allocates.
HUGE_PAGES = "glibc.malloc.hugetlb=1"


def restart_with_huge_pages() -> None:
    """Start this program once more, in its place, with large pages behind its memory; does nothing the second time.

    A weight is read once a step, in another place each time: with pages of 4 KB a virtual machine spends a tenth of
    the time of a small batch on looking up where they are. glibc hears of it at the start of a process only.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform == "linux" and "glibc.malloc.hugetlb" not in tunables:
        os.environ["GLIBC_TUNABLES"] = f"{tunables}:{HUGE_PAGES}".lstrip(":")
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@contextmanager
def unpinned() -> Iterator[None]:
    """The main thread on any of `PROCESSORS` meanwhile: a process that it starts inherits where it may run."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    pinned = os.sched_getaffinity(0)
    os.sched_setaffinity(0, PROCESSORS)
    try:
        yield
    finally:
        os.sched_setaffinity(0, pinned)


def settle_allocators() -> None:
    """Let memory and kernels once made be kept, as a server that runs for days would have them.

    glibc keeps freed memory, as CUDA's caching allocator does; otherwise each step pays the kernel for fresh pages,
    about a fifth of the experts' time at 512 tokens. oneDNN keeps a kernel for every row count it has met; its default
    of 1,024 is fewer than a skewed load has, and making one anew costs more than running it. Threads stay on their
    processors.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "65536")
    os.environ.setdefault("OMP_PROC_BIND", "true")
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mallopt(-4, 0)  # M_MMAP_MAX: take large blocks from the heap
    mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: and don't give them back
