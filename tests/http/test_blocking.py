"""What a server does to a connection that is kept: each failure is one of the transport, which callers try again."""

from __future__ import annotations

import itertools
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import pytest

from kafscale.http.blocking import BlockingClient, NoServerAnswer
from tests.devtools.external.http_servers import sending_server

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
def test_a_failure_on_a_kept_connection_is_a_transport_error(answer):
    with serving([WHOLE, answer], [WHOLE]) as url, closing(BlockingClient(timeout_seconds=0.05)) as client:
        assert client.send("GET", url, {}).body == b"hello"
        with pytest.raises(NoServerAnswer):
            client.send("GET", url, {})
        assert client.send("GET", url, {}).body == b"hello"


def test_a_kept_connection_that_was_closed_is_replaced():
    with serving([WHOLE], [WHOLE]) as url, closing(BlockingClient(timeout_seconds=5)) as client:
        assert client.send("GET", url, {}).body == b"hello"
        assert client.send("GET", url, {}).body == b"hello"


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nT: 1\r\n\r\n",
            200,
            b"hello",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE, 200, b"hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 404 Not Found\nContent-Length: 0\n\n", 404, b""),
    ],
)
def test_a_whole_answer_is_received_and_the_connection_is_reused(answer, status, body):
    with serving([answer, WHOLE]) as url, closing(BlockingClient(timeout_seconds=5)) as client:
        found = client.send("GET", url, {})
        assert (found.status, found.body) == (status, body)
        assert client.send("GET", url, {}).body == b"hello"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_an_answer_that_ends_the_connection_is_followed_by_another_connection(answer):
    with serving([answer], [WHOLE]) as url, closing(BlockingClient(timeout_seconds=5)) as client:
        assert client.send("GET", url, {}).body == b"hello"
        assert client.send("GET", url, {}).body == b"hello"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 101 + b"\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/2 200\r\n\r\n",
    ],
)
def test_an_incomplete_or_malformed_answer_raises_no_server_answer(answer):
    with serving([answer]) as url, closing(BlockingClient(timeout_seconds=5)) as client, pytest.raises(NoServerAnswer):
        client.send("GET", url, {})


@pytest.mark.parametrize(
    ("url", "headers"), [("http://127.0.0.1:1/a b", {}), ("http://127.0.0.1:1/", {"x": "a\r\ny: b"}), ("nowhere", {})]
)
def test_an_invalid_request_is_not_sent(url, headers):
    with closing(BlockingClient(timeout_seconds=5)) as client, pytest.raises(NoServerAnswer):
        client.send("GET", url, headers)


HEAD = b"HTTP/1.1 200 OK\r\n"
MAX_BYTES = 1 << 20


@pytest.mark.parametrize(
    "start",
    [b"", HEAD + b"Content-Length: 5000\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\nfff\r\n", HEAD + b"\r\n"],
)
def test_an_answer_of_a_byte_now_and_then_ended_at_no_time(start):
    """Each byte came within the timeout, so the wait was for ever."""
    with (
        sending_server(lambda: [start + b"H", *[b"T"] * 5000], pause_seconds=0.02) as url,
        closing(BlockingClient(timeout_seconds=5, deadline_seconds=0.5)) as client,
    ):
        began = time.monotonic()
        with pytest.raises(NoServerAnswer, match=r"in time|timed out"):
            client.send("GET", url, {})
        assert time.monotonic() - began < 4


def test_a_deadline_is_of_one_request_and_not_of_its_connection():
    with (
        serving([WHOLE] * 2) as url,
        closing(BlockingClient(timeout_seconds=5, deadline_seconds=0.3)) as client,
    ):
        assert client.send("GET", url, {}).body == b"hello"
        time.sleep(0.4)
        assert client.send("GET", url, {}).body == b"hello"


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (HEAD + b"Content-Length: 1000000000000\r\n\r\n", b"x" * 65536),
        (HEAD + b"\r\n", b"x" * 65536),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"e8d4a51000\r\n" + b"x" * 65536),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_an_endless_answer_took_all_memory(start, piece):
    with (
        sending_server(lambda: itertools.chain([start], itertools.repeat(piece))) as url,
        closing(BlockingClient(timeout_seconds=5, body_max_bytes=MAX_BYTES)) as client,
    ):
        tracemalloc.start()
        try:
            with pytest.raises(NoServerAnswer):
                client.send("GET", url, {})
            assert tracemalloc.get_traced_memory()[1] < 4 * MAX_BYTES
        finally:
            tracemalloc.stop()


def test_an_announced_length_reserves_no_memory():
    with (
        sending_server(lambda: [HEAD + b"Content-Length: 8000000000\r\n\r\n"]) as url,
        closing(BlockingClient(timeout_seconds=5)) as client,
    ):
        tracemalloc.start()
        try:
            with pytest.raises(NoServerAnswer, match="cut off after 0 of 8000000000"):
                client.send("GET", url, {})
            assert tracemalloc.get_traced_memory()[1] < 32 << 20
        finally:
            tracemalloc.stop()
