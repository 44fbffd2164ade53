"""How far the clocks of hosts are apart, found by asking."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: A rank on a host of its own, whose clock is an hour for each rank ahead of rank 0's.
RANK = """
import json, sys, time
from pathlib import Path
import torch.distributed as dist
from bench_worker.parallel import common_clock

folder, rank, size, apart = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "apart"
if apart:
    common_clock.BOOT_ID = folder / "nowhere"
    real = time.perf_counter_ns
    time.perf_counter_ns = lambda: real() + rank * 3_600_000_000_000
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
(folder / str(rank)).write_text(json.dumps(common_clock.clock_offsets_us()))
dist.destroy_process_group()
"""


def offsets(folder, size, apart):
    command = [sys.executable, "-c", RANK, str(folder)]
    started = [subprocess.Popen([*command, str(rank), str(size), apart], cwd=ROOT) for rank in range(size)]
    assert [one.wait(120) for one in started] == [0] * size
    told = [json.loads((folder / str(rank)).read_text()) for rank in range(size)]
    assert all(one == told[0] for one in told)
    return told[0]


def test_ranks_under_one_kernel_share_its_clock(tmp_path):
    assert offsets(tmp_path, 2, "together") == []


def test_the_clocks_of_several_hosts_are_compared_with_the_first_ones(tmp_path):
    found = offsets(tmp_path, 3, "apart")
    assert [round(us / 3.6e9, 2) for us in found] == [0, 1, 2]  # hours
