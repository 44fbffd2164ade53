from datetime import timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone

from webapp import health
from webapp.experiments import machines, pulse
from webapp.experiments.models import Machine, Pulse

pytestmark = pytest.mark.django_db
OK = {"status": "ok"}


@pytest.fixture
def machine():
    """A worker that has just been heard of."""
    return machines.register_this({"name": "a machine", "fingerprint": "a"}, "default")


@pytest.fixture
def beat():
    pulse.note(pulse.BEAT)


def test_a_stranger_may_ask_and_all_is_well(client, machine, beat):
    response = client.get("/healthz")
    assert response.status_code == 200
    assert response.json() == {"status": "ok", "database": OK, "broker": OK, "workers": OK, "beat": OK}


def test_without_worker_and_beat_pages_are_served_but_nothing_is_measured(client):
    response = client.get("/healthz")
    assert response.status_code == 200
    body = response.json()
    assert body["status"] == "degraded"
    assert body["workers"] == {"status": "silent", "reason": "no worker has registered yet"}
    assert body["beat"] == {"status": "silent", "reason": "it has sent no sweep yet"}


def test_silent_workers_are_counted_and_the_last_sign_of_life_is_told(client, machine, beat):
    machines.register_this({"name": "a machine", "fingerprint": "a"}, "gpu")
    last = timezone.now() - timedelta(minutes=5)
    Machine.objects.update(last_seen=last)
    body = client.get("/healthz").json()
    assert body["status"] == "degraded"
    expected = f"none of 2 known to the product has been heard of since {last:%Y-%m-%d %H:%M:%S} UTC"
    assert body["workers"] == {"status": "silent", "reason": expected}


def test_one_living_worker_is_enough(client, machine, beat):
    machines.register_this({"name": "a machine", "fingerprint": "a"}, "gpu")
    Machine.objects.filter(pk=machine.pk).update(last_seen=timezone.now() - timedelta(minutes=5))
    assert client.get("/healthz").json()["workers"] == OK


def test_a_silent_beat_is_told(client, machine, beat):
    Pulse.objects.update(at=timezone.now() - timedelta(minutes=5))
    body = client.get("/healthz").json()
    assert body["status"] == "degraded"
    assert body["beat"]["reason"].startswith("it has sent no sweep since ")


def test_the_queries_do_not_grow(client, machine, beat, django_assert_num_queries):
    for number in range(5):
        machines.register_this({"name": "a machine", "fingerprint": str(number)}, "gpu")
    with django_assert_num_queries(3):  # the database itself, machines, beat
        client.get("/healthz")


def test_a_broker_out_of_reach_is_named_with_the_reason(client, monkeypatch):
    monkeypatch.setattr(health.app.conf, "broker_url", "redis+socket:///nowhere/valkey.sock")
    response = client.get("/healthz")
    assert response.status_code == 503
    body = response.json()
    assert body["status"] == body["broker"]["status"] == "unavailable"
    assert "No such file" in body["broker"]["reason"]
    assert body["database"] == {"status": "ok"}


def test_a_database_out_of_reach_is_named_with_the_reason(client, monkeypatch):
    def refuse():
        raise OperationalError("connection refused\nIs the server running?")

    monkeypatch.setattr(health, "_ask_database", refuse)
    response = client.get("/healthz")
    assert response.status_code == 503
    body = response.json()
    assert body["database"] == {"status": "unavailable", "reason": "connection refused"}
    assert body["workers"] == body["beat"] == {"status": "unknown", "reason": "only the database knows"}


def test_a_missing_broker_says_what_to_do(client, settings):
    settings.BROKER_URL = ""
    assert "set BROKER_URL" in client.get("/healthz").json()["broker"]["reason"]
