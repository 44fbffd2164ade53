"""A webhook is posted over https, to a listed host at a public address, and nowhere else."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from webapp.history import webhooks

HOSTS = ["hooks.example.org", "10.0.0.1", "127.0.0.1", "8.8.8.8"]


def leads_to(*addresses: str) -> Any:
    return lambda host, port, **kwargs: [(None, None, None, "", (address, port)) for address in addresses]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://hooks.example.org/x", "it must begin with https:// (or slack+https://) and a host, without a user."),
        ("https:///x", "it must begin with https:// "),
        ("https://u:p@hooks.example.org/", "it must begin with https:// "),
        ("https://[::1/", "it is not an address."),
        ("https://hooks.example.org:x/", "it is not an address."),
        ("https://elsewhere.org/", "elsewhere.org is not one of MOESCOPE_ALERT_HOSTS: "),
        ("https://hooks.example.org.evil.org/", "is not one of MOESCOPE_ALERT_HOSTS"),
        ("https://10.0.0.1/", "10.0.0.1 is a private address."),
        ("slack+https://127.0.0.1/", "127.0.0.1 is a private address."),
    ],
)
def test_what_must_not_be_reached_is_refused_in_a_sentence(url: str, sentence: str) -> None:
    with pytest.raises(webhooks.Refused) as refused:
        webhooks.checked(url, HOSTS)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "url", ["https://hooks.example.org/x?y=1", "slack+https://hooks.example.org:8443/", "https://8.8.8.8/"]
)
def test_what_is_listed_and_public_passes(url: str) -> None:
    assert webhooks.checked(url, HOSTS).hostname in HOSTS


@pytest.mark.parametrize("address", ["192.168.1.5", "127.0.0.1", "169.254.169.254", "::1", "fe80::1%eth0", "fd00::1"])
def test_a_name_that_leads_to_a_private_address_is_refused(address: str) -> None:
    with pytest.raises(webhooks.Refused, match=r"leads to the private address"):
        webhooks.post("https://hooks.example.org/", b"{}", HOSTS, leads_to("8.8.8.8", address))


def test_a_name_without_an_address_and_a_host_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: Any, **kwargs: Any) -> None:
        raise socket.gaierror("Name or service not known")

    with pytest.raises(webhooks.Refused, match=r"^hooks.example.org has no address: Name or service not known\.$"):
        webhooks.post("https://hooks.example.org/", b"{}", HOSTS, unknown)

    def refused(*args: Any) -> None:
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(webhooks.socket, "create_connection", refused)
    with pytest.raises(webhooks.Refused, match=r"^hooks.example.org can't be reached: refused\.$"):
        webhooks.post("https://hooks.example.org/", b"{}", HOSTS, leads_to("8.8.8.8"))


class Answering:
    """Stands for the connection: notes what was asked of it."""

    def __init__(self, status: int) -> None:
        self.status, self.asked = status, []

    def __call__(self, address: str, host: str, port: int) -> Answering:
        self.asked.append((address, host, port))
        return self

    def request(self, method: str, path: str, data: bytes, headers: dict[str, str]) -> None:
        self.asked.append((method, path, data))

    def getresponse(self) -> Answering:
        return self

    def close(self) -> None:
        self.asked.append("closed")


def test_it_is_posted_to_the_address_that_was_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "_To", server := Answering(204))
    webhooks.post("https://hooks.example.org/x?y=1", b"{}", HOSTS, leads_to("8.8.8.8"))
    assert server.asked == [("8.8.8.8", "hooks.example.org", 443), ("POST", "/x?y=1", b"{}"), "closed"]


@pytest.mark.parametrize("status", [302, 404, 500])
def test_any_other_answer_is_a_failure_and_redirects_are_not_followed(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(webhooks, "_To", Answering(status))
    with pytest.raises(webhooks.Refused, match=rf"^hooks.example.org answered {status}\.$"):
        webhooks.post("https://hooks.example.org/", b"{}", HOSTS, leads_to("8.8.8.8"))


def test_slack_gets_text_and_programs_get_the_facts_too() -> None:
    assert json.loads(webhooks.body("slack+https://x/", "slower", {"event": "slower"})) == {"text": "slower"}
    assert json.loads(webhooks.body("https://x/", "slower", {"event": "e"})) == {"text": "slower", "event": "e"}
