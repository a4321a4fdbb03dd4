"""What a server does to a connection that is kept: each failure is one of the transport, which callers try again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import httpx
import pytest

from kafscale.spark.workers.http import BlockingTransport

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CUT_OFF = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello"
NOTHING = b""  # of a server that never answers: the client gives up


@contextmanager
def serving(*connections: Sequence[bytes]) -> Iterator[str]:
    """Give each connection these answers, one for a request, and close it then."""

    def serve(listening: socket.socket) -> None:
        for answers in connections:
            connection, _ = listening.accept()
            with connection:
                for answer in answers:
                    connection.recv(1 << 16)
                    connection.sendall(answer)
                    if answer is NOTHING:
                        connection.recv(1)  # until the client has closed it

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        thread.join()


@pytest.mark.parametrize("answer", [CUT_OFF, b"no HTTP\r\n\r\n", NOTHING])
def test_what_failed_on_a_kept_connection_was_not_tried_again(answer):
    with serving([WHOLE, answer], [WHOLE]) as url, closing(BlockingTransport(timeout_seconds=0.05)) as transport:
        assert transport.handle_request(httpx.Request("GET", url)).content == b"hello"
        with pytest.raises(httpx.TransportError):
            transport.handle_request(httpx.Request("GET", url))
        assert transport.handle_request(httpx.Request("GET", url)).content == b"hello"
