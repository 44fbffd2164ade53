"""What must be settled before torch loads."""

import os
import subprocess
import sys

import pytest

from bench_worker import allocators
from bench_worker.allocators import settle_allocators


def test_a_cache_size_that_is_set_already_stays(monkeypatch):
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())  # a C library without mallopt
    settle_allocators()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"


def test_large_blocks_are_kept_for_the_next_step():
    """A block given back and taken again causes no page faults."""
    code = """
import resource
from bench_worker.allocators import settle_allocators
settle_allocators()
faults = []
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = bytearray(b"x") * 50_000_000
    del block
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*faults)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, *later = map(int, done.stdout.split())
    assert first > 5_000  # 50 MB are 12,207 pages of 4 KiB
    assert max(later) < 500


ENTRY = """
import os, sys
from bench_worker import allocators
os.execv = lambda program, arguments: print(os.environ["GLIBC_TUNABLES"], arguments == [program, *sys.orig_argv[1:]])
allocators.restart_with_huge_pages()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's tunables are Linux's")
@pytest.mark.parametrize(
    ("set_already", "printed"),
    [
        ("", "glibc.malloc.hugetlb=1 True"),
        ("glibc.malloc.check=0", "glibc.malloc.check=0:glibc.malloc.hugetlb=1 True"),
        ("glibc.malloc.hugetlb=0", ""),
        ("glibc.malloc.hugetlb=1", ""),
    ],
)
def test_it_starts_again_with_large_pages_unless_someone_has_chosen(set_already, printed):
    environment = {**os.environ, "GLIBC_TUNABLES": set_already}
    done = subprocess.run([sys.executable, "-c", ENTRY], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == printed


def test_a_process_that_is_started_meanwhile_may_use_every_processor():
    pinned = os.sched_getaffinity(0)
    one = {min(pinned)}
    os.sched_setaffinity(0, one)
    try:
        with allocators.unpinned():
            assert os.sched_getaffinity(0) == allocators.PROCESSORS
        assert os.sched_getaffinity(0) == one
    finally:
        os.sched_setaffinity(0, pinned)
