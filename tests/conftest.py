"""One real Postgres and one real Valkey for the tests that need them, and doors into the pages.

The servers start with the first test that asks for the database, so tests of the measuring program alone do not pay
for them. Under pytest-xdist each worker process has servers of its own.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

# Test processes share the processors. OpenMP's threads of one spin at barriers while those of another hold the
# processor that they wait for: with a thread each, the same tests take a fraction of the time. Programs that tests
# start inherit it; torch reads it when it is first imported, after this.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Modules and tests stay to the end: the garbage collector need not walk through their millions of objects while they
# come, nor whenever it looks later.
gc.disable()

#: What takes longest, much of it waiting. It begins first, beside tests that compute: else it would be last, as
#: pytest-django puts tests that ask for no database there.
LONGEST = (
    "tests/faults/",
    "tests/bench_worker/parallel/test_launch.py",
    "tests/browser/test_every_page.py",
    "tests/browser/test_spine.py",
    "tests/test_deployment_by_hand.py",
    "tests/webapp/test_up.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def servers() -> Iterator[Any]:
    """The sockets of a Postgres and a Valkey that live as long as the test run."""
    from django.conf import settings

    from webapp import embedded

    with embedded.servers(settings.MOESCOPE_DATA) as sockets:
        yield sockets


@pytest.fixture(scope="session")
def django_db_modify_db_settings(servers: Any) -> None:
    """pytest-django asks for this before it makes the test database: point Django and Celery at the servers."""
    from django.conf import settings
    from django.db import connections

    from webapp.celery import app

    connections["default"].settings_dict["OPTIONS"]["host"] = str(servers.directory)
    connections["default"].settings_dict["USER"] = "moescope"
    settings.BROKER_URL = app.conf.broker_url = servers.broker_url
    # for the programs that tests start
    os.environ["DATABASE_URL"] = servers.database_url_of("test_moescope")
    os.environ["BROKER_URL"] = servers.broker_url


@pytest.fixture(scope="session")
def django_db_keepdb() -> bool:
    """The test database ends with its server; dropping it first would only wait for connections to close."""
    return True


@pytest.fixture
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is queued is a row, and no worker hears of it."""
    from webapp.experiments import queue

    monkeypatch.setattr(queue, "wake", lambda pool: None)


@pytest.fixture(scope="class")
def kept_rows(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """What class-scoped fixtures put into the database while no worker hears of it: each test of the class finds it,
    and is rolled back to it; it goes with the class."""
    from django.db import transaction

    from webapp.experiments import queue

    with pytest.MonkeyPatch.context() as patch, django_db_blocker.unblock(), transaction.atomic():
        patch.setattr(queue, "wake", lambda pool: None)
        yield
        transaction.set_rollback(True)


@pytest.fixture(scope="class")
def kept_member(kept_rows: None) -> Any:
    """A runner called anna, as ``member``, to whom the rows of a class can belong."""
    from webapp.accounts.models import User

    return User.objects.create_user("anna", role="runner")


@pytest.fixture(scope="session")
def kept_ceilings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that keeps this machine's ceilings, also for programs that tests start.

    They are made up. Measuring them takes seconds, and those of a busy machine are measured again by each program.
    """
    from bench_worker import ceilings, environment

    folder = tmp_path_factory.mktemp("cache")
    os.environ["MOESCOPE_CACHE"] = str(folder)

    def ceiling(value: float, unit: str) -> ceilings.Ceiling:
        return ceilings.Ceiling(value=value, unit=unit, kernel="made up", median=value, lowest=value, samples=1)

    fingerprint = environment.device_fingerprint(environment.machine())
    for threads in range(1, 9):
        made = ceilings.Ceilings(
            device="cpu",
            threads=threads,
            read=ceiling(50.0, "GB/s"),
            copy_rate=ceiling(50.0, "GB/s"),
            matrix={dtype: ceiling(1000.0, "GFLOP/s") for dtype in ("float32", "bfloat16", "float16", "int8")},
            cache_bytes=2**25,
            measured_at=datetime(2026, 1, 1, tzinfo=UTC),
            seconds=1.0,
            warnings=[],
        )
        ceilings.keep(fingerprint, made)
    return folder


@pytest.fixture
def member(django_user_model: Any) -> Any:
    """A member of the team, a runner as most are."""
    return django_user_model.objects.create_user("anna", password="correct horse battery", role="runner")


@pytest.fixture
def signed_in(client: Any, member: Any) -> Any:
    """A test client that ``member`` has signed in with."""
    client.force_login(member)
    return client


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """The system's Chromium; tests that drive it are skipped where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = next((path for name in names if (path := shutil.which(name))), None)
    if executable is None:
        pytest.skip("needs a browser: install the package chromium")
    return browser_type_launch_args | {
        "executable_path": executable,
        "args": ["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
    }


@pytest.fixture
def signed_in_page(page: Any, live_server: Any, signed_in: Any) -> Any:
    """A browser page, signed in as ``member``, whose relative addresses lead to the live server."""
    session = signed_in.cookies["sessionid"].value
    page.context.add_cookies([{"name": "sessionid", "value": session, "url": live_server.url}])
    return page
