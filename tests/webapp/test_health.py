import pytest
from django.db import OperationalError

from webapp import health

pytestmark = pytest.mark.django_db


def test_a_stranger_may_ask_and_all_is_well(client):
    response = client.get("/healthz")
    assert response.status_code == 200
    assert response.json() == {"status": "ok", "database": {"status": "ok"}, "broker": {"status": "ok"}}


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
    assert response.json()["database"] == {"status": "unavailable", "reason": "connection refused"}


def test_a_missing_broker_says_what_to_do(client, settings):
    settings.BROKER_URL = ""
    assert "set BROKER_URL" in client.get("/healthz").json()["broker"]["reason"]
