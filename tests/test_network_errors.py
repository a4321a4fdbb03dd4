"""Error messages about servers that can't be reached or speak another protocol, from real sockets."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kafscale.network_errors import why_unreachable
from kafscale.testing.certificates import make_authority

HTTP = b"HTTP/1.0 400 Bad Request\r\n\r\n"


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that answers each connection so, and closes it. Gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _http(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(HTTP)


def _closing(connection: socket.socket) -> None:
    connection.recv(4096)


def _failure(port: int, context: ssl.SSLContext) -> str:
    with (
        pytest.raises(OSError, match=r".*") as caught,
        socket.create_connection(("127.0.0.1", port), 10) as connected,
        context.wrap_socket(connected, server_hostname="localhost"),
    ):
        pass
    return why_unreachable(caught.value)


def test_tls_to_a_server_without_tls_gets_a_clear_error_message() -> None:
    with serving(_http) as port:
        assert _failure(port, ssl.create_default_context()) == "it does not speak TLS"
    with serving(_closing) as port:
        told = _failure(port, ssl.create_default_context())
    assert told == "it closed the connection in the handshake, as a server without TLS does"


def test_a_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    server = make_authority(tmp_path).issue("broker").server_context()

    def secured(connection: socket.socket) -> None:
        server.wrap_socket(connection, server_side=True)

    with serving(secured) as port:
        assert _failure(port, ssl.create_default_context()).startswith("its certificate is not valid here: ")


def test_no_version_in_common(tmp_path: Path) -> None:
    server = make_authority(tmp_path).issue("broker").server_context()
    server.minimum_version = ssl.TLSVersion.TLSv1_3
    client = ssl.create_default_context()
    client.maximum_version = ssl.TLSVersion.TLSv1_2

    def secured(connection: socket.socket) -> None:
        server.wrap_socket(connection, server_side=True)

    with serving(secured) as port:
        assert "no version or cipher of TLS in common" in _failure(port, client)


def test_a_refused_connection_is_reported_as_connection_refused() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError) as caught:
            socket.create_connection(bound.getsockname(), 10)
    assert why_unreachable(caught.value) == "Connection refused"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "there is no host of that name (Name or "),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), "its name can't be looked up just now (Temporary "),
        (TimeoutError("timed out"), "it did not answer in time"),
        (OSError("all attempts failed"), "all attempts failed"),
        (ExceptionGroup("", [ConnectionRefusedError(111, "Connecting to x: refused")]), "Connection refused"),
    ],
)
def test_other_failures(error: Exception, told: str) -> None:
    wrapped = RuntimeError("trio's")
    wrapped.__cause__ = error
    assert why_unreachable(wrapped).startswith(told)
