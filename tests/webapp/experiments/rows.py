"""Experiments in each state, made by the product's own functions, and pages as they are read."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from django.utils import timezone

from bench_worker.kernel_report import Table, ask
from tests.webapp.experiments import make
from webapp.experiments import ingest, machines, queue
from webapp.experiments.models import Experiment, State

MACHINE = {"name": "AMD EPYC, 2 cores", "fingerprint": "f00d", "memory_bytes": 24e9, "gpus": [], "cores": 2,
           "cpu": "AMD EPYC", "versions": {"torch": "2.13.0"}}  # fmt: skip


def put(author: Any, **changes: Any) -> Experiment:
    return queue.enqueue(make.experiment(**changes), author=author)


def run(author: Any, **changes: Any) -> Experiment:
    put(author, **changes)
    row = queue.claim("default", machines.register_this(MACHINE, "default"))
    assert row is not None
    return row


def measuring(author: Any, finished: int = 1, **changes: Any) -> Experiment:
    row = run(author, **changes)
    runs = make.result(make.experiment(**changes)).runs[:finished]
    so_far = [r.model_dump(mode="json", include={"variant", "condition", "status", "summary"}) for r in runs]
    steps = {"done": 3, "total": 5, "since": timezone.now().timestamp() - 60}
    progress = {"phase": "measure", "variant": "none", "condition": "1×16", "steps": steps}
    queue.beat(queue.fence_of(row), progress, so_far)
    return row


def done(author: Any, wrong: frozenset[str] = frozenset(), num_steps: int = 5, **changes: Any) -> Experiment:
    row = run(author, **changes)
    queue.begin_ingest(queue.fence_of(row))
    ingest.ingest(queue.fence_of(row), make.result(make.experiment(**changes), num_steps, wrong), row.machine)
    row.refresh_from_db()
    return row


def on_ranks(author: Any, nodes: list[int], num_steps: int = 5, **changes: Any) -> Experiment:
    """A finished experiment whose runs had as many ranks as there are ``nodes``."""
    row = run(author)
    queue.begin_ingest(queue.fence_of(row))
    measured = make.result(make.experiment(), num_steps)
    spread = [make.on_ranks(found, nodes, **changes) for found in measured.runs]
    ingest.ingest(queue.fence_of(row), measured.model_copy(update={"runs": spread}), row.machine)
    row.refresh_from_db()
    return row


def measured_kernels(author: Any, table: Table | None = None) -> Experiment:
    """A finished table of expert backends."""
    table = table or make.table()
    sizes = dict.fromkeys(row.tokens for row in table.rows)
    asked = ask(table.model, ",".join(map(str, sizes)), table.dtype)
    queue.enqueue_kernels(asked, author=author, pool="default")
    row = queue.claim("default", machines.register_this(MACHINE, "default"))
    assert row is not None
    queue.begin_ingest(queue.fence_of(row))
    ingest.ingest(queue.fence_of(row), table, row.machine)
    row.refresh_from_db()
    return row


def ended(row: Experiment, how: str = State.CANCELED) -> Experiment:
    fence = queue.fence_of(row)
    if how == State.FAILED:
        queue.fail(fence, "The measuring program was killed (SIGKILL).", "step 1\n<step 2>")
    else:
        queue.cancel(fence)
    return row


def text_of(response: Any) -> str:
    """The page as it is read: no tags, blanks made one."""
    page = re.sub(r"<(script|title).*?</\1>", " ", response.content.decode(), flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def title_of(response: Any) -> str:
    found = re.search(r"<title>(.*?)</title>", response.content.decode(), re.DOTALL)
    assert found is not None
    return unescape(found[1]).strip()
