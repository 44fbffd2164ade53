"""``python -m tests.faults [--rounds N] [WORDS ...]``: does every kind of harm to a product, prints what came of it.

With ``--serve`` it reads one fault's name a line and answers with its tally as a line of JSON: that is how the test
suite calls it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import django

from tests.faults.product import SETTINGS, Product
from webapp import processes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Does harm to a product.")
    parser.add_argument("--rounds", type=int, default=10, help="how often each fault is done; 10 without")
    parser.add_argument("--serve", action="store_true", help="do those that standard input names, answer in JSON")
    parser.add_argument("words", nargs="*", help="words of the names of those to do; all without")
    given = parser.parse_args()
    data = Path(tempfile.mkdtemp(prefix="moescope-faults-"))
    product = Product(data)
    try:
        os.environ |= {"DJANGO_SETTINGS_MODULE": SETTINGS, "MOESCOPE_DATA": str(data)}
        django.setup()
        return serve(product, given.rounds) if given.serve else show(product, given.rounds, given.words)
    finally:
        product.stop()
        processes.kill(product.all_processes())
        shutil.rmtree(data)


def serve(product: Product, rounds: int) -> int:
    from tests.faults.trial import try_out

    for line in sys.stdin:
        print(json.dumps(asdict(try_out(product, line.strip(), rounds))), flush=True)
    return 0


def show(product: Product, rounds: int, words: list[str]) -> int:
    from tests.faults.cases import FAULTS
    from tests.faults.trial import table, try_out

    tallies = []
    for name in FAULTS:
        if not words or any(word in name for word in words):
            print(f"{name} ...", file=sys.stderr, flush=True)
            tallies.append(try_out(product, name, rounds))
    print(table(tallies))
    return 1 if any(tally.wrong for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
