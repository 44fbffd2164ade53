"""How this process keeps memory and kernels. Torch-free, since it must be settled before torch loads."""

from __future__ import annotations

import ctypes
import os


def settle_allocators() -> None:
    """Let memory and kernels once made be kept, as a server that runs for days would have them.

    glibc keeps freed memory, as CUDA's caching allocator does; otherwise each step pays the kernel for fresh pages,
    about a fifth of the experts' time at 512 tokens. oneDNN keeps a kernel for every row count it has met; its default
    of 1,024 is fewer than a skewed load has, and making one anew costs more than running it.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "65536")
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mallopt(-4, 0)  # M_MMAP_MAX: take large blocks from the heap
    mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: and don't give them back
