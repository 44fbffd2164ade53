"""The team is told of a regression once, when it is sure, and until it has arrived."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core import mail

from tests.webapp.experiments.rows import text_of
from tests.webapp.history.make_nights import day, nights
from webapp.history import alerts, series, webhooks
from webapp.history.models import Change, Delivery, Digest, Group, Record, Schedule, Triage

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]

SLOWER = {"stage_experts": 1.12, "step_us": 1.1}
HOOK = "https://hooks.example.org/secret"


@pytest.fixture(autouse=True)
def mailed(settings: Any) -> list[Any]:
    settings.EMAIL_URL = "smtp://mail.example.org"
    settings.MOESCOPE_ALERT_MAIL = ["team@example.org"]
    settings.MOESCOPE_URL = "https://moescope.example.org"
    return mail.outbox


def live(planned: Schedule, first: int, last: int, from_night: int = 10, **slower: float) -> None:
    """As workers do: each night is taken up and the team told."""
    for number in range(first, last + 1):
        nights(planned, number, number, from_night=from_night, **slower)
        for moment in (day(number) + timedelta(hours=1), day(number) + timedelta(hours=2)):
            alerts.look(moment)


def test_a_regression_is_told_once_with_the_right_night_and_stage(planned: Schedule, mailed: list[Any]) -> None:
    live(planned, 0, 20, **SLOWER)
    (message,) = mailed
    assert message.to == ["team@example.org"]
    assert message.subject.startswith("Slower: experts +1")
    assert "is slower since the night of 2026-03-12, confirmed by a further night." in message.body
    experts = Change.objects.get(series__metric="stage.experts").series
    assert f"https://moescope.example.org/history/{experts.pk}/" in message.body
    assert Digest.objects.count() == 1
    assert not Change.objects.filter(told_at=None, confirmed_at__isnull=False).exists()


def test_versions_on_either_side_are_told(planned: Schedule, mailed: list[Any]) -> None:
    nights(planned, 0, 18, from_night=10, **SLOWER)
    for number, row in enumerate(Record.objects.order_by("at")):
        Record.objects.filter(pk=row.pk).update(versions={"image": "2" if number >= 10 else "1"})
    alerts.look(day(18))
    assert "New that night: image 1 → 2." in mailed[0].body


def test_a_second_regression_is_a_second_digest(planned: Schedule, mailed: list[Any]) -> None:
    live(planned, 0, 20, **SLOWER)
    live(planned, 21, 31, **{name: factor * 1.15 for name, factor in SLOWER.items()})
    assert len(mailed) == 2
    assert "since the night of 2026-03-23" in mailed[1].body


def test_what_became_faster_wakes_nobody(planned: Schedule, mailed: list[Any]) -> None:
    live(planned, 0, 18, stage_experts=0.88)
    assert Change.objects.exclude(confirmed_at=None).exists()
    assert mailed == []


def test_what_somebody_acknowledged_before_it_was_confirmed_wakes_nobody(
    planned: Schedule, member: Any, mailed: list[Any]
) -> None:
    nights(planned, 0, 18, from_night=10, **SLOWER)
    series.decide(Change.objects.filter(series__metric="stage.experts").get(), Triage.EXPECTED, "", member, day(18))
    alerts.look(day(18))
    assert mailed == []


def test_two_events_in_one_night_are_told_in_two_nights(planned: Schedule, mailed: list[Any]) -> None:
    nights(planned, 0, 18, from_night=10, **SLOWER)
    group = Group.objects.get()
    Digest.objects.create(group=group, night=day(18).date(), subject="x", text="x", facts={})
    alerts.look(day(18))
    assert mailed == []
    alerts.look(day(19))
    assert len(mailed) == 1


class TestDelivery:
    @pytest.fixture
    def digest(self, planned: Schedule) -> Digest:
        group = Group.objects.create(fingerprint="f", machine="a CPU", title="Fusion")
        return Digest.objects.create(group=group, night=day(0).date(), subject="Slower", text="Text", facts={"a": 1})

    def waiting(self, digest: Digest, channel: str) -> Delivery:
        return Delivery.objects.create(digest=digest, channel=channel, next_try_at=day(0))

    def test_a_mail_server_that_is_down_is_tried_again_later_and_later(
        self, digest: Digest, mailed: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        delivery = self.waiting(digest, "team@example.org")

        def down(*args: Any) -> bool:
            return False

        with monkeypatch.context() as outage:
            outage.setattr(alerts.mail, "send", down)
            pauses = []
            for _ in range(3):
                delivery.refresh_from_db()
                moment = delivery.next_try_at
                alerts.look(moment)
                delivery.refresh_from_db()
                pauses.append(delivery.next_try_at - moment)
        assert pauses == [timedelta(minutes=minutes) for minutes in (1, 2, 4)]
        assert (delivery.sent_at, delivery.failure) == (None, "The mail server did not take it.")
        alerts.look(delivery.next_try_at)
        assert [message.body for message in mailed] == ["Text"]
        alerts.look(delivery.next_try_at + timedelta(days=1))
        assert len(mailed) == 1

    def test_pauses_have_a_limit_and_so_have_tries(self, digest: Digest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(alerts.mail, "send", lambda *args: False)
        delivery = self.waiting(digest, "team@example.org")
        Delivery.objects.update(tries=29)
        alerts.look(day(1))
        delivery.refresh_from_db()
        assert (delivery.tries, delivery.next_try_at) == (30, day(1) + timedelta(hours=6))
        alerts.look(day(2))
        delivery.refresh_from_db()
        assert delivery.tries == 30

    def test_two_workers_send_once(self, digest: Digest, mailed: list[Any]) -> None:
        delivery = self.waiting(digest, "team@example.org")
        twin = Delivery.objects.select_related("digest").get(pk=delivery.pk)
        assert alerts.deliver(delivery, day(1))
        assert not alerts.deliver(twin, day(1))
        assert len(mailed) == 1

    def test_a_webhook_gets_the_facts_and_its_refusal_is_kept_and_shown_without_its_secret(
        self, digest: Digest, signed_in: Any, settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
    ) -> None:
        delivery = self.waiting(digest, HOOK)
        posted = []
        monkeypatch.setattr(webhooks, "post", lambda *args: posted.append(args))
        settings.MOESCOPE_ALERT_HOSTS = ["hooks.example.org"]
        assert alerts.deliver(delivery, day(1))
        assert posted == [(HOOK, b'{"a": 1, "text": "Slower\\nText"}', ["hooks.example.org"])]
        monkeypatch.undo()
        settings.MOESCOPE_ALERT_HOSTS = []
        unlisted = self.waiting(digest, f"slack+{HOOK}")
        assert not alerts.deliver(unlisted, day(1))
        response = signed_in.get("/history/")
        sentence = "hooks.example.org is not one of MOESCOPE_ALERT_HOSTS: none."
        assert f"The alert “Slower” has not reached hooks.example.org after 1 try: {sentence}" in text_of(response)
        assert "secret" not in response.text + caplog.text
