"""A fault tried several times, and what became of the experiments. Imported once Django knows the product."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field

import psutil

from tests.faults.cases import FAULTS, Expected, becomes, seen
from tests.faults.product import PARTS, PATIENCE_S, Product
from tests.webapp.experiments.waiting import wait_until
from webapp import processes
from webapp.experiments import attempts
from webapp.experiments.models import ENDED, State

COLUMNS = ("rounds", "done", "failed", "re-run", "stuck", "doubled", "orphans", "wrong")


@dataclass
class Tally:
    """What came of a fault over its rounds: counts by `COLUMNS`, each cause of a failure once, and what went wrong."""

    fault: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COLUMNS, 0))
    causes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def note(self, what: str, wrong: str = "") -> None:
        self.counts[what] += 1
        if wrong:
            self.wrong.append(wrong)


def try_out(product: Product, name: str, rounds: int) -> Tally:
    """``rounds`` times the fault ``name``, each on a product that has recovered from the one before."""
    tally = Tally(name)
    for _ in range(rounds):
        tally.note("rounds")
        try:
            wait_until_whole(product)
            for expected in FAULTS[name](product):
                judge(expected, tally)
            wait_until_whole(product)
        except Exception:
            tally.note("wrong", traceback.format_exc())
        if not wait_until(lambda: not product.orphans() and not attempts.directories(), 30):
            tally.note("orphans", f"left: {product.orphans()} {attempts.directories()}")
            processes.kill(product.orphans())
    return tally


def judge(expected: Expected, tally: Tally) -> None:
    """Wait for an experiment's end, and note what it came to."""
    if not becomes(expected.row, *ENDED):
        now = seen(expected.row)
        tally.note("stuck", f"stuck: {now and (now.state, now.attempt, now.heartbeat_at)}")
        return
    row = seen(expected.row)
    assert row is not None
    tally.note("done" if row.state == State.DONE else "failed")
    if row.attempt > 1:
        tally.note("re-run")
    if row.failure and row.failure not in tally.causes:
        tally.causes.append(row.failure)
    planned = len(row.plan) if row.state == State.DONE else 0
    if row.runs.count() != planned:
        tally.note("doubled", f"{row.state} with {row.runs.count()} runs, and {planned} were planned")
    found = (row.state, row.attempt, expected.failure in row.failure, expected.last_output in row.last_output)
    if found != (expected.state, expected.attempts, True, True):
        tally.note("wrong", f"{row.state} at attempt {row.attempt}: {row.failure!r}, {row.last_output[-200:]!r}")


def wait_until_whole(product: Product) -> None:
    """Wait until every part runs, the pages answer and the worker takes experiments."""

    def whole() -> bool:
        try:
            return all(product.part(name).is_running() for name in PARTS) and bool(product.child_of_worker())
        except (psutil.Error, LookupError, ValueError, OSError):
            return False

    if not wait_until(lambda: whole() and product.healthy(), PATIENCE_S):
        raise AssertionError(f"the product did not recover; it said:\n{''.join(product.said)}")


def table(tallies: list[Tally]) -> str:
    width = max(len(tally.fault) for tally in tallies)
    lines = [" ".join([f"{'fault':{width}}", *(f"{name:>7}" for name in COLUMNS)])]
    for tally in tallies:
        lines.append(" ".join([f"{tally.fault:{width}}", *(f"{tally.counts[name]:7}" for name in COLUMNS)]))
        lines += [f"  failed with: {cause}" for cause in tally.causes]
        lines += [f"  WRONG: {sentence}" for sentence in tally.wrong]
    return "\n".join(lines)
