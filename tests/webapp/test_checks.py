from pathlib import Path

import pytest

from webapp import checks
from webapp.ui import finders


def ids(messages):
    return [message.id for message in messages]


def test_nothing_is_missing_here(settings):
    settings.BROKER_URL = "redis://x"
    assert checks.servers_are_named(None) == []
    assert checks.pool_is_a_name(None) == []


def test_without_servers_both_are_asked_for_with_a_way_out(settings):
    settings.DATABASE_URL = settings.BROKER_URL = ""
    messages = checks.servers_are_named(None)
    assert ids(messages) == ["moescope.E001", "moescope.E003"]
    assert all("make run" in message.hint for message in messages)
    assert "DATABASE_URL=postgresql://" in messages[0].hint


def test_another_database_is_refused(settings):
    settings.DATABASE_URL, settings.BROKER_URL = "sqlite:///x", "redis://x"
    assert ids(checks.servers_are_named(None)) == ["moescope.E002"]


@pytest.mark.parametrize("pool", ["", "two words", "a" * 65, "pool/1"])
def test_a_pool_that_can_be_no_queue_is_refused(settings, pool):
    settings.MOESCOPE_POOL = pool
    assert ids(checks.pool_is_a_name(None)) == ["moescope.E004"]


def test_missing_npm_packages_are_named(monkeypatch):
    monkeypatch.setattr(finders, "NODE_MODULES", Path("/nowhere"))
    (message,) = checks.npm_packages_are_there(None)
    assert message.id == "moescope.W001"
    assert message.msg == "Pages lack chart.umd.min.js, htmx.min.js, idiomorph-ext.min.js, pico.classless.min.css."
