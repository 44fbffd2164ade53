"""The queue's promises: a message is only a wake-up, and nothing of it is kept."""

import pytest

from webapp.celery import app, patience_with


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("task_acks_late", False),
        ("worker_prefetch_multiplier", 1),
        ("worker_concurrency", 1),
        ("accept_content", ["json"]),
        ("result_backend", None),
        ("task_ignore_result", True),
        ("timezone", "UTC"),
        ("broker_connection_max_retries", None),
        ("task_default_queue", "default"),
    ],
)
def test_the_queue_is_set_up_as_a_wake_up(setting, value):
    assert getattr(app.conf, setting) == value


def test_beat_sweeps_every_ten_seconds_and_a_late_sweep_is_dropped():
    app.loader.import_default_modules()  # what a worker does at its start
    sweep = app.conf.beat_schedule["sweep"]
    assert sweep["task"] in app.tasks
    assert sweep["schedule"] == 10
    assert sweep["options"]["expires"] <= 10


@pytest.mark.parametrize(
    ("url", "options"),
    [("redis+socket:///run/valkey.sock", {"socket_timeout": 5.0}), ("redis://host:6379/0", {"socket_timeout": 5.0}),
     ("amqp://host", {}), ("", {})],
)  # fmt: skip
def test_a_silent_broker_holds_nothing_up(url, options):
    assert patience_with(url) == options
