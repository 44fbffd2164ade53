"""A Moescope elsewhere, over its API: what ``manage.py bench --server`` needs of it. Standard library only."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import uuid4

TIMEOUT_S = 30.0
#: A server that is away is asked again for so long: a restart, or a network that comes and goes.
PATIENCE_S, RETRY_EVERY_S = 120.0, 2.0
#: What a proxy answers for a server that is just starting.
AWAY = frozenset({502, 503, 504})
#: No answer, and none to wait for.
NOT_TRUSTED, NO_ADDRESS = -1, -2


class RemoteError(Exception):
    """The server refused, in its own words, or could not be reached. ``status``: of its answer; None where it may come
    yet."""

    def __init__(self, sentence: str, status: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status


class Server(NamedTuple):
    """``address``: where the pages are, such as ``https://moescope.example.org``. ``say`` is told, once each time, that
    the server is away."""

    address: str
    token: str
    say: Callable[[str], None]

    def queue(self, document: bytes, pool: str | None, labels: Mapping[str, str]) -> dict[str, Any]:
        """The queued experiment. Sent again after a lost answer, it is still queued once."""
        asked = [*([("pool", pool)] if pool else []), *(("label", f"{key}={value}") for key, value in labels.items())]
        query = f"?{urllib.parse.urlencode(asked)}" if asked else ""
        headers = {"Idempotency-Key": uuid4().hex, "Content-Type": "application/json"}
        return self._json("POST", f"experiments/{query}", document, headers)

    def states(self, number: int, every_s: float) -> Iterator[dict[str, Any]]:
        """The experiment as it is now and then, the last time when it has ended."""
        while True:
            row = self._json("GET", f"experiments/{number}/")
            yield row
            if row["state"] in ("done", "failed", "canceled"):
                return
            time.sleep(every_s)

    def result(self, number: int) -> bytes:
        return self._patiently(lambda: self._ask("GET", f"experiments/{number}/result/"))

    def page(self, row: dict[str, Any]) -> str:
        return self.address.rstrip("/") + row["url"]

    def _json(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        data = self._patiently(lambda: self._ask(method, path, body, headers))
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict) or "id" not in found:
            raise RemoteError(f"{self.address} does not answer as a Moescope does: is this the address of one?", 200)
        return found

    def _patiently(self, ask: Callable[[], bytes]) -> bytes:
        until, is_told = time.monotonic() + PATIENCE_S, False
        while True:
            try:
                return ask()
            except RemoteError as error:
                if not (error.status is None or error.status in AWAY) or time.monotonic() > until:
                    raise
                if not is_told:
                    self.say(f"{error}; asking again for up to {PATIENCE_S:.0f} s")
                    is_told = True
            time.sleep(RETRY_EVERY_S)

    def _ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
        address = f"{self.address.rstrip('/')}/api/v1/{path}"
        all_headers = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        try:
            request = urllib.request.Request(address, body, all_headers, method=method)
            with _OPENER.open(request, timeout=TIMEOUT_S) as response:
                data: bytes = response.read()
                return data
        except urllib.error.HTTPError as error:
            raise RemoteError(_sentence(error), error.code) from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            # a certificate that is not trusted will not be in two minutes either
            status = NOT_TRUSTED if isinstance(reason, ssl.SSLCertVerificationError) else None
            raise RemoteError(f"{self.address} can't be reached: {reason}", status) from None
        except (http.client.HTTPException, ValueError) as error:
            raise RemoteError(f"{self.address} can't be asked: {error}", NO_ADDRESS) from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token goes to the server that was named, and to no other."""

    def redirect_request(self, *args: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def _sentence(error: urllib.error.HTTPError) -> str:
    """What the server says is wrong; the status where it says nothing that can be read."""
    try:
        detail = json.loads(error.read())["detail"]
    except (OSError, ValueError, KeyError, TypeError):
        elsewhere = error.headers.get("Location")
        hint = f", to {elsewhere}: name the address that it leads to" if elsewhere else ""
        return f"{error.url} answers {error.code} {error.reason}{hint}"
    return str(detail)
