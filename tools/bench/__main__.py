"""``python -m tools.bench [clock] [routing]``: those sections, or all."""

from __future__ import annotations

import argparse
import sys

from bench_worker.allocators import settle_allocators

settle_allocators()  # before torch loads

from bench_worker import environment  # noqa: E402
from tools.bench import clock, routing  # noqa: E402

SECTIONS = {"clock": clock.section, "routing": routing.section}


def main() -> int:
    args = argparse.ArgumentParser(prog="python -m tools.bench", description="The figures that the docs quote.")
    args.add_argument("sections", nargs="*", metavar="SECTION", help=f"{' or '.join(SECTIONS)}; all without one")
    args.add_argument("--models", default="olmoe-1b-7b,qwen3-30b-a3b", help="presets of the clock's section")
    asked = args.parse_args()
    if unknown := set(asked.sections) - set(SECTIONS):
        args.error(f"{', '.join(sorted(unknown))}: the sections are {', '.join(SECTIONS)}")
    machine = environment.machine()
    print(f"{machine['name']}, {machine['threads']} threads, torch {machine['versions']['torch']}\n")
    for name in asked.sections or SECTIONS:
        SECTIONS[name](asked.models.split(","))
    return 0


if __name__ == "__main__":
    sys.exit(main())
