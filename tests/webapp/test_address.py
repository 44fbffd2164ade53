import socket

import pytest

from webapp import address
from webapp.processes import StartError


def test_port_zero_takes_a_free_one():
    with address.listen("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0


def test_a_taken_port_is_one_sentence():
    with address.listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(StartError, match=rf"^Port {port} on 127\.0\.0\.1 can't be used \(address already in use\)"):
            address.listen("127.0.0.1", port)


@pytest.mark.parametrize(("host", "sentence"), [("no-such-host.invalid", "There is no host"), ("192.0.2.1", "Port 80")])
def test_a_host_that_is_not_ours_is_one_sentence(host, sentence, monkeypatch):
    def unknown(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    if host.endswith(".invalid"):
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(StartError, match=sentence):
        address.listen(host, 80)


@pytest.mark.parametrize(
    ("host", "seen"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("box", "box")],
)
def test_an_address_is_written_as_a_browser_here_needs_it(host, seen):
    assert address.as_seen_from_here(host) == seen


def test_only_this_machines_names_are_taken():
    assert address.names_of("127.0.0.1") == ["127.0.0.1", "localhost", "[::1]"]
    everywhere = address.names_of("0.0.0.0")
    assert socket.gethostname() in everywhere
    assert "*" not in everywhere


def test_a_silent_port_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert not address.answers(f"http://127.0.0.1:{port}/healthz")
