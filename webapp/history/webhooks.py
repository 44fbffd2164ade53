"""Posting a digest to a webhook: over https, to a host that the settings list, at a public address.

The address is looked up once and the connection made to it, so that a name can't lead elsewhere between check and use.
Redirects are not followed.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import ssl
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import SplitResult, urlsplit

SLACK = "slack+"
TIMEOUT_S = 10.0


class Refused(Exception):
    """A webhook that must not or could not be reached; the message is a sentence."""


def checked(url: str, hosts: Collection[str]) -> SplitResult:
    """The parts of ``url``. Raises `Refused` unless it is https to one of ``hosts``, which no private address is."""
    try:
        parts = urlsplit(url.removeprefix(SLACK))
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise Refused("it is not an address.") from None
    if parts.scheme != "https" or not host or parts.username or parts.password:
        raise Refused("it must begin with https:// (or slack+https://) and a host, without a user.")
    if host not in hosts:
        raise Refused(f"{host} is not one of MOESCOPE_ALERT_HOSTS: {', '.join(sorted(hosts)) or 'none'}.")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return parts  # a name: what it leads to is looked at when something is sent
    if not address.is_global:
        raise Refused(f"{host} is a private address.")
    return parts


def body(url: str, text: str, facts: dict[str, Any]) -> bytes:
    """Slack and its like want ``text`` alone."""
    return json.dumps({"text": text} if url.startswith(SLACK) else facts | {"text": text}).encode()


def post(url: str, data: bytes, hosts: Collection[str], look_up: Callable[..., Any] = socket.getaddrinfo) -> None:
    """Raises `Refused`, in a sentence, unless the other side answers with 2xx."""
    parts = checked(url, hosts)
    host, port = str(parts.hostname), parts.port or 443
    connection = _To(_public_address(host, port, look_up), host, port)
    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    try:
        connection.request("POST", path, data, {"Content-Type": "application/json", "User-Agent": "Moescope"})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise Refused(f"{host} can't be reached: {error}.") from None
    finally:
        connection.close()
    if not 200 <= status < 300:
        raise Refused(f"{host} answered {status}.")


def _public_address(host: str, port: int, look_up: Callable[..., Any]) -> str:
    try:
        found = [str(place[4][0]) for place in look_up(host, port, type=socket.SOCK_STREAM)]
    except OSError as error:
        raise Refused(f"{host} has no address: {error}.") from None
    for address in found:
        if not ipaddress.ip_address(address.partition("%")[0]).is_global:
            raise Refused(f"{host} leads to the private address {address}.")
    return found[0]


class _To(http.client.HTTPSConnection):
    """https to ``host`` at one ``address``."""

    def __init__(self, address: str, host: str, port: int) -> None:
        self.address = address
        self.tls = ssl.create_default_context()
        super().__init__(host, port, timeout=TIMEOUT_S, context=self.tls)

    def connect(self) -> None:
        plain = socket.create_connection((self.address, self.port), TIMEOUT_S)
        self.sock = self.tls.wrap_socket(plain, server_hostname=self.host)
