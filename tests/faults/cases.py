"""The faults: each does its harm to a running product, and says what must become of the experiments that it queued."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from signal import SIGTERM
from typing import Any
from unittest import mock
from uuid import uuid4

import psutil
import redis
from django.conf import settings
from django.db import connection, transaction
from django.db.models import F

from bench_worker import kernel_report
from tests.faults.product import PATIENCE_S, ROOT, SETTINGS, Product
from tests.webapp.experiments import make
from tests.webapp.experiments.waiting import wait_until
from webapp.experiments import attempts, queue
from webapp.experiments.models import ENDED, Experiment, State


@dataclass(frozen=True)
class Expected:
    """What an experiment must come to: its state, its attempts, and words of the sentence that says why it failed."""

    row: Experiment
    state: State = State.DONE
    attempts: int = 1
    failure: str = ""
    last_output: str = ""


Fault = Callable[[Product], list[Expected]]
FAULTS: dict[str, Fault] = {}


def fault(name: str) -> Callable[[Fault], Fault]:
    def register(function: Fault) -> Fault:
        FAULTS[name] = function
        return function

    return register


def put(title: str = "Fusion", pool: str | None = None, **changes: Any) -> Experiment:
    return queue.enqueue(make.experiment(title=title, **changes), author=None, pool=pool)


def seen(row: Experiment) -> Experiment | None:
    """The row as it is now; None while the database is away."""
    try:
        return Experiment.objects.get(pk=row.pk)
    except queue.AWAY:
        connection.close()
        return None


def becomes(row: Experiment, *states: State, within_s: float = PATIENCE_S) -> bool:
    return wait_until(lambda: (now := seen(row)) is not None and now.state in states, within_s)


class Held:
    """An experiment, or ``row``, that measures until it is let go."""

    def __init__(self, product: Product, words: str = "wait", row: Experiment | None = None) -> None:
        self.product, self.file = product, product.data / f"go-{uuid4().hex}"
        self.row = row or put(f"{words} {self.file}")
        self.measures()

    def measures(self, attempt: int = 1) -> None:
        """Wait until this attempt has told of its progress."""

        def started() -> bool:
            now = seen(self.row)
            return now is not None and now.attempt == attempt and now.state == State.RUNNING and bool(now.progress)

        assert wait_until(started, PATIENCE_S), f"attempt {attempt} does not measure: {seen(self.row).__dict__}"

    def processes(self, attempt: int = 1) -> list[psutil.Process]:
        return self.product.measuring(f"{self.row.pk}-{attempt}")

    def program(self, attempt: int = 1) -> psutil.Process:
        """The measuring program itself, without its guard."""
        [running] = [process for process in self.processes(attempt) if "webapp.guard" not in process.cmdline()]
        return running

    def is_gone(self, attempt: int = 1) -> None:
        """Wait until no process of this attempt is left."""
        assert wait_until(lambda: not self.processes(attempt), PATIENCE_S)

    def let_go(self) -> Experiment:
        self.file.touch()
        return self.row


@fault("kill -9 of the worker")
def worker(product: Product) -> list[Expected]:
    held = Held(product)
    product.kill("Worker")
    held.is_gone()
    return [Expected(held.let_go(), attempts=2)]


@fault("kill -9 of the process that runs the worker's tasks")
def child_of_worker(product: Product) -> list[Expected]:
    held = Held(product)
    product.child_of_worker().kill()
    held.is_gone()
    return [Expected(held.let_go(), attempts=2)]


@fault("kill -9 of all processes of a worker, its ranks have left it")
def worker_side(product: Product) -> list[Expected]:
    held = Held(product, "leave ranks and wait")
    child = product.child_of_worker()
    [guard] = [process for process in child.children() if "webapp.guard" in process.cmdline()]
    guard.kill()
    child.kill()
    product.kill("Worker")
    held.is_gone()
    return [Expected(held.let_go(), attempts=2)]


@fault("kill -9 of the worker, three times")
def worker_thrice(product: Product) -> list[Expected]:
    held = Held(product, "hang in")
    for attempt in (1, 2, 3):
        held.measures(attempt)
        output = product.data / "attempts" / f"{held.row.pk}-{attempt}" / attempts.OUTPUT
        assert wait_until(lambda output=output: output.exists() and "hanging" in output.read_text(), PATIENCE_S)
        product.child_of_worker().kill()
        held.is_gone(attempt)
    return [
        Expected(held.row, State.FAILED, 3, "Its worker was lost 3 times (the last time: its process was", "hanging")
    ]


@fault("kill -9 of the measuring program")
def program(product: Product) -> list[Expected]:
    held = Held(product)
    held.program().kill()
    return [Expected(held.row, State.FAILED, failure="was killed (SIGKILL)")]


@fault("kill -9 of the worker, then of the program, while kernels are measured")
def kernels(product: Product) -> list[Expected]:
    at_seven_it_hangs = kernel_report.ask("olmoe-1b-7b", "7", "bfloat16")
    held = Held(product, row=queue.enqueue_kernels(at_seven_it_hangs, author=None, pool=settings.MOESCOPE_POOL))
    product.kill("Worker")
    held.is_gone()
    held.measures(attempt=2)
    held.program(attempt=2).kill()
    return [Expected(held.row, State.FAILED, attempts=2, failure="was killed (SIGKILL)")]


@fault("kill -9 of the program's guard")
def guard(product: Product) -> list[Expected]:
    held = Held(product)
    [running] = [process for process in held.processes() if "webapp.guard" in process.cmdline()]
    running.kill()
    return [Expected(held.row, State.FAILED, failure="The guard of the measuring program ended (SIGKILL)")]


@fault("kill -9 of beat")
def beat(product: Product) -> list[Expected]:
    held = Held(product)
    product.kill("Beat")
    return [Expected(held.let_go())]


@fault("beat hangs, and a wake-up is lost")
def beat_hangs(product: Product) -> list[Expected]:
    with stopped(product.part("Beat")):
        with mock.patch.object(queue, "wake"):
            row = put()
        assert becomes(row, *ENDED)
    return [Expected(row)]


@fault("kill -9 of the web server")
def web(product: Product) -> list[Expected]:
    held = Held(product)
    product.kill("Web")
    assert wait_until(product.healthy, PATIENCE_S)
    return [Expected(held.let_go())]


@fault("kill -9 of Postgres while an experiment runs")
def postgres(product: Product) -> list[Expected]:
    held = Held(product)
    product.kill("Postgres")
    assert wait_until(product.healthy, PATIENCE_S)
    return [Expected(held.let_go())]


@fault("kill -9 of Postgres as a measurement ends")
def postgres_at_the_end(product: Product) -> list[Expected]:
    held = Held(product)
    product.part("Postgres").kill()
    return [Expected(held.let_go())]


@fault("kill -9 of Postgres while a result is stored")
def postgres_in_ingest(product: Product) -> list[Expected]:
    held = Held(product)
    with contextlib.suppress(*queue.AWAY), storing_waits():  # the lock goes with its server
        held.let_go()
        assert wait_until(lambda: waiting_for_a_lock() == 1, PATIENCE_S)
        product.part("Postgres").kill()
    connection.close()
    return [Expected(held.row)]


@fault("kill -9 of the worker while a result is stored")
def worker_in_ingest(product: Product) -> list[Expected]:
    held = Held(product)
    with storing_waits():
        held.let_go()
        assert wait_until(lambda: waiting_for_a_lock() == 1, PATIENCE_S)
        product.child_of_worker().kill()
    return [Expected(held.row)]


@fault("a result is stored twice at once")
def doubled_ingest(product: Product) -> list[Expected]:
    row = queue.claim("elsewhere") if put(pool="elsewhere") else None
    assert row is not None
    file = product.data / f"result-{uuid4().hex}.json"
    file.write_text(make.result(make.experiment()).model_dump_json(by_alias=True))
    store = (
        "import django; django.setup(); from pathlib import Path; from webapp.experiments import models, perform;"
        f"perform.store(models.Experiment.objects.get(pk={row.pk}), Path({str(file)!r}), '')"
    )
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": SETTINGS, "MOESCOPE_DATA": str(product.data)}
    with transaction.atomic():
        Experiment.objects.select_for_update().get(pk=row.pk)
        both = [subprocess.Popen([sys.executable, "-c", store], cwd=ROOT, env=environment) for _ in range(2)]
        assert wait_until(lambda: waiting_for_a_lock() == 2, PATIENCE_S)
    assert [one.wait(PATIENCE_S) for one in both] == [0, 0]
    return [Expected(row)]


@fault("kill -9 of Valkey")
def valkey(product: Product) -> list[Expected]:
    held = Held(product)
    product.kill("Valkey")
    unheard = put()
    return [Expected(held.let_go()), Expected(unheard)]


@fault("the broker is flushed")
def flush(product: Product) -> list[Expected]:
    held, waiting = Held(product), put()
    broker = redis.Redis(unix_socket_path=settings.BROKER_URL.removeprefix("redis+socket://"))
    broker.flushall()
    broker.close()
    assert becomes(held.let_go(), *ENDED)
    return [Expected(held.row), Expected(waiting), Expected(put())]


@fault("two workers claim at once")
def two_workers(product: Product) -> list[Expected]:
    with product.another_worker():
        both = [Held(product), Held(product)]  # at the same time
        rows = [*(put() for _ in range(4)), *(held.let_go() for held in both)]
        assert all(becomes(row, *ENDED) for row in rows)
    return [Expected(row) for row in rows]


@fault("a worker hangs until another one has its experiment")
def worker_comes_back(product: Product) -> list[Expected]:
    held = Held(product)
    with stopped(product.child_of_worker()), product.another_worker():
        overdue = F("heartbeat_at") - queue.HEARTBEAT_TIMEOUT - timedelta(seconds=1)
        Experiment.objects.filter(pk=held.row.pk).update(heartbeat_at=overdue)
        held.measures(2)
        assert becomes(held.let_go(), *ENDED)
    held.is_gone()
    return [Expected(held.row, attempts=2)]


@fault("SIGTERM to the worker: a deployment")
def deploy_worker(product: Product) -> list[Expected]:
    held = Held(product)
    product.kill("Worker", SIGTERM)
    held.is_gone()
    assert (now := seen(held.row)) is not None
    assert now.handed_back == 1
    return [Expected(held.let_go(), attempts=2)]


@fault("SIGTERM to the web server: a deployment")
def deploy_web(product: Product) -> list[Expected]:
    held = Held(product)
    product.kill("Web", SIGTERM)
    assert wait_until(product.healthy, PATIENCE_S)
    return [Expected(held.let_go())]


@fault("the program hangs")
def hang(product: Product) -> list[Expected]:
    row = put("hang", measure={"max_seconds": 1})
    return [Expected(row, State.FAILED, failure="it still ran after 2 s, the most it may take", last_output="hanging")]


@fault("the program eats memory")
def eat(product: Product) -> list[Expected]:
    with product.another_worker(MOESCOPE_POOL="small", MOESCOPE_MEMORY_GB="0.5"):
        row = put("eat", pool="small")
        assert becomes(row, *ENDED)
    return [Expected(row, State.FAILED, failure="stopped: out of memory, it used ", last_output="hungry")]


@fault("the program leaves ranks behind")
def ranks(product: Product) -> list[Expected]:
    held = Held(product, "leave ranks and wait")
    assert wait_until(lambda: len(held.processes()) == 4, PATIENCE_S)
    return [Expected(held.let_go())]


@fault("kill -9 of the worker under the real program")
def real(product: Product) -> list[Expected]:
    base = {"model": "olmoe-1b-7b", "workload": {"requests": 1, "output_tokens": 8, "prompt_tokens": 16}}
    row = put("real", base=base, vary=None, conditions=[])
    assert wait_until(lambda: (now := seen(row)) is not None and bool(now.progress), PATIENCE_S)
    product.kill("Worker")
    assert wait_until(lambda: not product.measuring(f"{row.pk}-1"), PATIENCE_S)
    assert becomes(row, *ENDED, within_s=3 * PATIENCE_S)
    return [Expected(row, attempts=2)]


@fault("kill -9 of the whole product")
def everything(product: Product) -> list[Expected]:
    held = Held(product, "leave ranks and wait")
    product.up.kill()
    product.up.wait()
    connection.close()
    product.start()
    held.is_gone()
    return [Expected(held.let_go(), attempts=2)]


@contextlib.contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """The process stands still while the block runs."""
    process.suspend()
    try:
        yield
    finally:
        process.resume()


@contextlib.contextmanager
def storing_waits() -> Iterator[None]:
    """Whoever stores a result waits while the block runs, in the middle of its transaction."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("LOCK TABLE experiments_stageseries IN ACCESS EXCLUSIVE MODE")
        yield


def waiting_for_a_lock() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")
        return int(cursor.fetchone()[0])
