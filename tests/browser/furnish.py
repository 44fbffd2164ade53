"""A product with nothing, with one experiment, or with a year of them, for tests that look at every page."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.utils import timezone

from bench_worker import verdict
from bench_worker.strategies import STRATEGIES
from tests.webapp.experiments import make, rows
from tests.webapp.history.make_nights import nights, schedule
from webapp.experiments import machines, queue, upkeep
from webapp.experiments.compare_read import written
from webapp.experiments.export import result_of
from webapp.experiments.models import Experiment, Machine, Run, State
from webapp.history.models import Night, Series
from webapp.traces.recording_store import import_recording
from webapp.traces.store import import_trace

LONG = "A title that somebody typed without thinking of narrow screens " * 3
UNBROKEN = "x" * 200
HEADER = "arrival_s,prompt_tokens,output_tokens\n"
CORNERS = [{"concurrency": users, "prompt_tokens": tokens} for tokens in (128, 2048) for users in (1, 16)]
OUTPUT = "\n".join(f"[2026-03-01 12:00:{second:02}] a line of the measuring program {UNBROKEN}" for second in range(50))


def furnish(author: Any, count: int) -> dict[str, str]:
    """Make ``count`` experiments and what belongs to them. Gives the addresses of pages that show one, by name."""
    if count == 0:
        return {}
    history = _history(author, count)  # first, while nothing waits that would be measured in its place
    return history | stock_library(author, count) | _experiments(author, count) | _schedules(author, min(count, 12))


def stock_library(author: Any, count: int) -> dict[str, str]:
    """A trace and a recording, or many with long names, one of them used."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, f"{LONG[:60]}.csv")
        for number in range(min(count, 12)):
            file.write_text(
                HEADER + "".join(f"{n * n / 7},{n * 37 % 4000 + 1},{n % 90 + 1}\n" for n in range(number, 400))
            )
            trace, _ = import_trace(file, f"{UNBROKEN[:90]}-{number}" if number else "first", author)
        file.write_text(json.dumps({"counts": [[n * 7 % 11 for n in range(64)] for _ in range(min(count, 40))]}))
        recording, _ = import_recording([file], UNBROKEN[:90] if count > 1 else "first", author)
        file.write_text(HEADER + "0,5,6\n0,7,8\n")
        burst, _ = import_trace(file, "burst")
    if count > 1:
        load = {"profile": "recorded", "recording": recording.name}
        base = {"model": "olmoe-1b-7b", "load": load, "workload": {"trace": trace.name}}
        asked = make.experiment(frozenset([trace.name]), frozenset([recording.name]), base=base, title=LONG[:200])
        upkeep.delete(queue.enqueue(asked, author=author, pool="gpu").pk)
        queue.enqueue(asked, author=author, pool="gpu")
    return {
        "trace": trace.get_absolute_url(),
        "burst": burst.get_absolute_url(),
        "recording": recording.get_absolute_url(),
    }


def _experiments(author: Any, count: int) -> dict[str, str]:
    if count == 1:
        row, kernels = rows.done(author), rows.measured_kernels(author)
        assert row.machine
        return {
            "kernels": kernels.get_absolute_url(),
            "done": row.get_absolute_url(),
            "ranks": rows.on_ranks(author, [0, 0, 1, 1]).get_absolute_url(),
            "comparison": comparing(row),
            "run": f"{row.get_absolute_url()}runs/3/?behind=tpot_ms",
            "machine": row.machine.get_absolute_url(),
        }
    older = machines.register_this(rows.MACHINE, "default")
    newer = rows.MACHINE | {"fingerprint": "beef", "versions": {"torch": "2.14.0", "zentorch": "2.14"}, "threads": 1}
    gpu = {"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 80e9}
    machines.register_this(rows.MACHINE | {"name": f"2× {gpu['name']}", "gpus": [gpu, gpu]}, "gpu")
    Machine.objects.filter(pool="gpu").update(last_seen=timezone.now() - timedelta(hours=3))
    strategies = {"field": "routing.strategy", "values": [*STRATEGIES]}
    wide = judged(rows.done(author, title="Every corner", num_steps=60, conditions=CORNERS, vary=strategies))
    again = rows.done(author, title=UNBROKEN, num_steps=60, conditions=CORNERS)
    upkeep.describe(wide.pk, title=LONG[:200].strip(), tags=["nightly", "h100", "x" * 40], notes=f"{LONG}\n{UNBROKEN}")
    failed = rows.run(author, title=UNBROKEN)
    queue.fail(queue.fence_of(failed), "The measuring program was killed (SIGKILL). " * 3, OUTPUT)
    deleted = rows.done(author, title="Gone")
    upkeep.delete(deleted.pk)
    Experiment.objects.bulk_create(_like(wide, count - 20))
    machines.register_this(newer, "default")
    sizes = [1, 8, 64, 512, 2048, 131_072]
    on_gpu = {"gpus": [gpu], "flags": ["Other processes took 40% of the processors meanwhile."]}
    rows.measured_kernels(author, make.table(tokens=sizes))
    kernels = rows.measured_kernels(author, make.table(tokens=sizes, slower=1.2, day=2, **on_gpu))
    running = rows.measuring(author, title="Runs now")
    rows.run(author, title="Starts")
    for number in range(10):
        rows.put(author, title=f"Waits {number}" if number else LONG[:200])
    waiting = queue.enqueue(make.experiment(title="Waits elsewhere"), author=author, pool="gpu")
    ranks = rows.on_ranks(author, [rank // 8 for rank in range(128)], parallel={"redundant_experts": 64})
    assert running.machine
    return {
        "ranks": ranks.get_absolute_url(),
        "done": wide.get_absolute_url(),
        "comparison": comparing(wide),
        "several things differ": comparing(wide, again),
        "run": f"{wide.get_absolute_url()}runs/3/?by=-e2e&sort=-time",
        "kernels": kernels.get_absolute_url(),
        "failed": failed.get_absolute_url(),
        "running": running.get_absolute_url(),
        "waiting": waiting.get_absolute_url(),
        "machine": running.machine.get_absolute_url(),
        "earlier state": older.get_absolute_url(),
        "describe": f"{wide.get_absolute_url()}describe/",
    }


def comparing(*rows: Experiment) -> str:
    """Where all runs of these are compared."""
    runs = Run.objects.filter(experiment__in=rows).order_by("experiment", "position")
    return f"/compare/?runs={written(list(runs.values_list('pk', flat=True)))}"


def judged(row: Experiment) -> Experiment:
    """With ceilings, and a verdict as the measuring program makes it."""
    found = verdict.overall(result_of(row).runs)  # type: ignore[union-attr]
    assert found is not None
    assert row.result is not None
    ceilings = {"2": make.ceilings().model_dump(mode="json")}
    row.result |= {"verdict": found.model_dump(mode="json"), "ceilings": ceilings}
    row.result["environment"] |= {"threads": 2}
    row.save()
    return row


def _history(author: Any, count: int) -> dict[str, str]:
    nightly = schedule(author, title="Every night", is_on=False)
    nights(nightly, 0, min(count * 2, 18), from_night=10, stage_experts=1.12, step_us=1.1)
    return {"series": Series.objects.get(metric="stage.experts").get_absolute_url()}


def _schedules(author: Any, count: int) -> dict[str, str]:
    """The last of them has had nights of every kind."""
    for number in range(count):
        planned = schedule(author, title=f"{UNBROKEN[:150]} {number}" if number else "first", is_on=number % 3 < 2)
    for days, row in enumerate(Experiment.objects.visible().filter(kind="experiment")[: min(count, 8)]):
        Night.objects.create(schedule=planned, due_at=timezone.now() - timedelta(days=days), experiment=row)
    Night.objects.create(schedule=planned, due_at=timezone.now() - timedelta(days=20), left_out=LONG)
    return {"schedule": f"/schedules/{planned.pk}/", "change schedule": f"/schedules/{planned.pk}/change/"}


def _like(row: Experiment, count: int) -> Iterator[Experiment]:
    """``count`` ended ones without runs: as much as lists read."""
    assert row.finished_at
    for number in range(count):
        yield Experiment(
            title=f"Night {number}: {row.title}"[: 40 + number % 160],
            document=row.document,
            plan=row.plan,
            model_names=["olmoe-1b-7b", "qwen3-30b-a3b"][: 1 + number % 2],
            likeness=row.likeness,
            state=State.DONE if number % 7 else State.FAILED,
            failure="" if number % 7 else "The measuring program was killed.",
            answer=row.answer,
            tags=["nightly"] if number % 3 else [],
            pool=row.pool,
            author=row.author,
            machine=row.machine,
            queued_at=row.queued_at - timedelta(hours=number),
            started_at=row.queued_at - timedelta(hours=number),
            finished_at=row.finished_at - timedelta(hours=number),
        )
