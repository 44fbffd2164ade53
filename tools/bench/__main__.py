"""``python -m tools.bench [SECTION …]``: the sections named, or all of them."""

from __future__ import annotations

import argparse
import sys

from bench_worker.allocators import restart_with_huge_pages, settle_allocators

restart_with_huge_pages()
settle_allocators()  # before torch loads

from bench_worker import environment  # noqa: E402
from tools.bench import (  # noqa: E402
    clock,
    compare,
    depth,
    history,
    hosts,
    kernels,
    memory,
    pairs,
    parallel,
    routing,
    schedule,
    stats,
)  # fmt: skip

#: By name, in the order in which they run.
SECTIONS = {
    "clock": clock.section, "kernels": kernels.section, "routing": routing.section, "schedule": schedule.section,
    "parallel": parallel.section, "hosts": hosts.section, "memory": memory.section, "depth": depth.section,
    "history": history.section, "stats": stats.section, "aa": pairs.aa_section, "slowdown": pairs.slowdown_section,
    "compare": compare.section,
}  # fmt: skip


def main() -> int:
    args = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    args.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all without any")
    names = args.parse_args().sections or list(SECTIONS)
    if unknown := [name for name in names if name not in SECTIONS]:
        args.error(f"{unknown[0]!r} is not one of {', '.join(SECTIONS)}")
    machine = environment.machine()
    print(f"{machine['name']}, {machine['threads']} threads, torch {machine['versions']['torch']}\n")
    for name in names:
        SECTIONS[name]()
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
