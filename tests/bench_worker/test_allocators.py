"""What must be settled before torch loads."""

import os
import subprocess
import sys

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
