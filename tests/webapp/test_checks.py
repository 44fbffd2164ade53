from pathlib import Path

import pytest
from django.core.checks import WARNING
from django.core.management.base import SystemCheckError

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


def test_memory_below_nothing_is_refused(settings):
    assert checks.memory_is_an_amount(None) == []
    settings.MOESCOPE_MEMORY_GB = -1.0
    (message,) = checks.memory_is_an_amount(None)
    assert (message.id, message.msg) == ("moescope.E007", "MOESCOPE_MEMORY_GB can't be -1.")


def test_missing_npm_packages_are_named(monkeypatch):
    monkeypatch.setattr(finders, "NODE_MODULES", Path("/nowhere"))
    (message,) = checks.npm_packages_are_there(None)
    assert message.id == "moescope.W001"
    assert message.msg == "Pages lack chart.umd.min.js, htmx.min.js, idiomorph-ext.min.js, pico.classless.min.css."


def test_files_that_were_collected_need_no_npm_packages(monkeypatch, settings, tmp_path):
    """An image holds the collected files alone."""
    monkeypatch.setattr(finders, "NODE_MODULES", Path("/nowhere"))
    settings.STATIC_ROOT = tmp_path
    for name in finders.VENDOR_FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert checks.npm_packages_are_there(None) == []


def test_a_key_that_nobody_chose_is_not_served_with(settings):
    settings.SECRET_KEY = settings.PASSING_KEY + "x" * 50
    with pytest.raises(SystemCheckError, match=r"moescope.E005\) No SECRET_KEY.*\n.*openssl rand -hex 32"):
        checks.refuse_to_serve_badly()
    settings.SECRET_KEY = "x" * 50
    checks.refuse_to_serve_badly()


def test_a_deployment_without_a_host_name_is_told_how_to_give_one(settings):
    settings.ALLOWED_HOSTS = settings.LOCAL_HOSTS
    [message] = checks.host_is_named(None)
    assert message.id == "moescope.E006"
    assert "ALLOWED_HOSTS=moescope.example.org" in message.hint
    settings.ALLOWED_HOSTS = ["moescope.example.org", *settings.LOCAL_HOSTS]
    assert checks.host_is_named(None) == []


def test_plain_http_is_warned_about(settings):
    settings.MOESCOPE_HTTPS = False
    [message] = checks.pages_come_by_https(None)
    assert (message.id, message.level) == ("moescope.W002", WARNING)
    settings.MOESCOPE_HTTPS = True
    assert checks.pages_come_by_https(None) == []


def test_labels_that_are_none_are_refused(settings):
    assert checks.labels_are_labels(None) == []
    settings.MOESCOPE_LABELS = ["image"]
    (message,) = checks.labels_are_labels(None)
    assert message.id == "moescope.E008"
    assert message.msg.startswith("MOESCOPE_LABELS: 'image' is no key=value")


def test_steps_are_kept_for_a_number_of_days(settings):
    assert checks.steps_are_kept_for_days(None) == []
    settings.MOESCOPE_KEEP_STEPS_DAYS = -1
    (message,) = checks.steps_are_kept_for_days(None)
    assert (message.id, message.msg) == ("moescope.E011", "MOESCOPE_KEEP_STEPS_DAYS can't be -1.")


def test_alerts_that_can_never_be_sent_are_refused_at_the_start(settings):
    assert checks.alerts_can_be_sent(None) == []
    settings.MOESCOPE_ALERT_HOSTS = ["hooks.example.org", "10.0.0.1"]
    settings.MOESCOPE_ALERT_WEBHOOKS = ["https://hooks.example.org/a", "https://10.0.0.1/b", "https://x.org/secret"]
    settings.MOESCOPE_ALERT_MAIL, settings.EMAIL_URL = ["team@example.org"], ""
    found = checks.alerts_can_be_sent(None)
    assert [(message.id, message.msg) for message in found] == [
        ("moescope.E009", "MOESCOPE_ALERT_WEBHOOKS, number 2: 10.0.0.1 is a private address."),
        ("moescope.E009", "MOESCOPE_ALERT_WEBHOOKS, number 3: x.org is not one of MOESCOPE_ALERT_HOSTS: "
                          "10.0.0.1, hooks.example.org."),
        ("moescope.E010", "MOESCOPE_ALERT_MAIL needs a mail server."),
    ]  # fmt: skip
