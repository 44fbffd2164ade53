"""Where the pages are served: the listening socket, and the names that lead to it. Knows nothing of Django."""

from __future__ import annotations

import os
import socket
import urllib.error
import urllib.request

import psutil

from webapp.processes import StartError

EVERYWHERE = ("0.0.0.0", "::", "")


def listen(host: str, port: int) -> socket.socket:
    """The web's listening socket. It stays with this process, so the port is kept while the web starts again."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        if isinstance(error, socket.gaierror):
            raise StartError(f"There is no host {host!r} to listen on: {error.strerror}.") from None
        why = os.strerror(error.errno or 0).lower()  # `create_server` adds the address to the error's own text
        raise StartError(f"Port {port} on {host} can't be used ({why}): choose another with --port.") from None


def answers(url: str) -> bool:
    """True once the page answers without a server error; a refusal of our host name is an answer too."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False


def as_seen_from_here(host: str) -> str:
    """The host name that a browser on this machine uses for what listens on ``host``."""
    here = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, host)
    return f"[{here}]" if ":" in here and not here.startswith("[") else here


def names_of(host: str) -> list[str]:
    """Host names that requests may carry: this machine's own, more of them where everyone may come in."""
    names = ["127.0.0.1", "localhost", "[::1]", as_seen_from_here(host)]
    if host in EVERYWHERE:
        addresses = [a.address.partition("%")[0] for found in psutil.net_if_addrs().values() for a in found]
        names += [socket.gethostname(), socket.getfqdn()]
        names += [f"[{address}]" if ":" in address else address for address in addresses]
    return list(dict.fromkeys(names))
