"""How long the server takes for a comparison of 50 runs. Quoted in docs/comparison.md."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import django

RUNS, STEPS, REPEATS = 50, 200, 9
#: What the runs are: contenders at one corner, or two at many.
SHAPES: dict[str, dict[str, Any]] = {
    "50 variants at one corner": {
        "vary": {"field": "kernels.threads", "values": list(range(1, RUNS + 1))},
        "conditions": [{"concurrency": 1, "prompt_tokens": 16}],
    },
    "2 variants at 25 corners": {
        "conditions": [{"concurrency": 1, "prompt_tokens": 16 + place} for place in range(RUNS // 2)],
    },
}


def section() -> None:
    """On a Postgres and a Valkey of its own, with made-up runs of 200 steps."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    django.setup()
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connections

    from webapp import embedded

    with embedded.servers(Path(settings.MOESCOPE_DATA)) as sockets:
        connection = connections["default"].settings_dict
        connection["OPTIONS"]["host"], connection["USER"] = str(sockets.directory), "moescope"
        call_command("migrate", verbosity=0)
        _table()
        connections.close_all()


def _table() -> None:
    from django.test import Client

    from tests.webapp.experiments.rows import done
    from webapp.accounts.models import User
    from webapp.experiments import compare_page, queue
    from webapp.experiments.compare_read import written

    queue.wake = lambda pool: None  # no worker is to be woken
    client, member = Client(HTTP_HOST="localhost"), User.objects.create_user("bench")
    client.force_login(member)
    print(f"/compare/ of {RUNS} runs of {STEPS} steps, ms of the server and of its processor, medians of {REPEATS}")
    print(f"{'':>28}{'first':>10}{'processor':>12}{'again':>10}{'processor':>12}")
    for name, changes in SHAPES.items():
        row = done(member, num_steps=STEPS, **changes)
        numbers = list(row.runs.order_by("position").values_list("pk", flat=True))
        times: list[tuple[float, ...]] = []
        for _ in range(REPEATS):
            compare_page.remembered.forget()
            times.append((*_ms(client, written(numbers)), *_ms(client, written(numbers))))
        wall, own, wall_again, own_again = map(statistics.median, zip(*times, strict=True))
        print(f"{name:>28}{wall:>10.0f}{own:>12.0f}{wall_again:>10.0f}{own_again:>12.0f}")


def _ms(client: Any, runs: str) -> tuple[float, float]:
    """Of one answer: on the wall, and of this process's processor."""
    start, own = time.perf_counter(), time.process_time()
    response = client.get("/compare/", {"runs": runs})
    elapsed = (time.perf_counter() - start) * 1000, (time.process_time() - own) * 1000
    assert response.status_code == 200, response
    return elapsed
