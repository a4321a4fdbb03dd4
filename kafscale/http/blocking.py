"""A blocking HTTP/1.1 client without trio, for Spark's tasks and schema registries: one kept connection per thread.

An answer takes memory as it arrives, up to the client's maximum, whatever length it announces. Reading the log takes a
GET for each small object. The standard library's client and httpx take more CPU for such a request than all other work
on it, so this module writes and reads the few bytes itself (decision 0039).
"""

from __future__ import annotations

import io
import math
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import attrs

IDLE_MAX_COUNT = 64  # connections kept per origin
RECEIVE_BYTES = 64 << 10
LINE_MAX_BYTES = 64 << 10  # of a head, as http.client's
HEADERS_MAX_COUNT = 100  # likewise
INTERIM_MAX_COUNT = 10  # answers of 1xx before one
PIECE_BYTES = 16 << 20  # of a body, for which memory is taken before it has come; most objects have less
BODY_MAX_BYTES = 8 << 30  # S3 puts no more than 5 GiB into one object at once

Headers = Mapping[str, str]


class NoServerAnswer(Exception):
    """A server is unreachable, or its answer is not whole."""


class Hangup(NoServerAnswer):
    """The connection was closed before an answer began, perhaps before the request."""


@attrs.frozen(kw_only=True)
class ServerAnswer:
    """A whole answer. Header names are in lower case; of repeated ones the last counts."""

    status: int
    headers: Headers
    body: bytes


@attrs.define(eq=False, kw_only=True, repr=False)
class BlockingClient:
    """An HTTP client that many threads may use at once.

    timeout_seconds: without progress. deadline_seconds: from a request to the end of its answer; None for no deadline.
    ssl_context: None for the default one.
    """

    timeout_seconds: float
    deadline_seconds: float | None = None
    body_max_bytes: int = BODY_MAX_BYTES
    ssl_context: ssl.SSLContext | None = None
    _idle: dict[str, list[_CheckedConnection]] = attrs.field(factory=dict, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def send(self, method: str, url: str, headers: Headers, body: bytes = b"") -> ServerAnswer:
        """Send a request, and receive the whole answer. Raises NoServerAnswer.

        If the server has closed a kept connection meanwhile, the request is sent again, which is safe: users of this
        client only read.
        """
        end_seconds = math.inf if self.deadline_seconds is None else time.monotonic() + self.deadline_seconds
        try:
            origin, target = split_url(url)
            request = _encode(method, target, {"host": origin.partition("://")[2], **headers}, body)
            connection = self._take_idle(origin)
            if connection is not None:
                try:
                    return self._exchange(origin, connection, request, end_seconds)
                except (Hangup, ConnectionError):
                    pass
            return self._exchange(origin, self._connect(origin, end_seconds), request, end_seconds)
        except (OSError, ValueError) as exc:
            raise NoServerAnswer(str(exc) or type(exc).__name__) from exc

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()

    def _exchange(
        self, origin: str, connection: _CheckedConnection, request: bytes, end_seconds: float
    ) -> ServerAnswer:
        keep = False
        try:
            connection.receiver.end_seconds = end_seconds
            connection.socket.settimeout(_left(self.timeout_seconds, end_seconds))
            connection.socket.sendall(request)
            answer, keep = _receive(connection.stream, self.body_max_bytes)
            return answer
        finally:
            if not keep or not self._put_idle(origin, connection):
                connection.close()

    def _connect(self, origin: str, end_seconds: float) -> _CheckedConnection:
        parts = urlsplit(origin)
        assert parts.hostname is not None
        port = parts.port or (443 if parts.scheme == "https" else 80)
        connected = socket.create_connection((parts.hostname, port), _left(self.timeout_seconds, end_seconds))
        try:
            connected.settimeout(_left(self.timeout_seconds, end_seconds))
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if parts.scheme == "https":
                context = self.ssl_context or _default_context()
                connected = context.wrap_socket(connected, server_hostname=parts.hostname)
            receiver = _Receiver(connected, self.timeout_seconds)
            return _CheckedConnection(connected, receiver, io.BufferedReader(receiver, RECEIVE_BYTES))
        except BaseException:
            connected.close()
            raise

    def _take_idle(self, origin: str) -> _CheckedConnection | None:
        with self._lock:
            connections = self._idle.get(origin)
            return connections.pop() if connections else None

    def _put_idle(self, origin: str, connection: _CheckedConnection) -> bool:
        with self._lock:
            connections = self._idle.setdefault(origin, [])
            if len(connections) >= IDLE_MAX_COUNT:
                return False
            connections.append(connection)
            return True


class _Receiver(io.RawIOBase):
    def __init__(self, connected: socket.socket, timeout_seconds: float) -> None:
        self._socket = connected
        self._timeout_seconds = timeout_seconds
        self.end_seconds = math.inf

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.end_seconds < math.inf:
            self._socket.settimeout(_left(self._timeout_seconds, self.end_seconds))
        return self._socket.recv_into(buffer)


def _left(timeout_seconds: float, end_seconds: float) -> float:
    left_seconds = end_seconds - time.monotonic()
    if left_seconds <= 0:
        raise TimeoutError("the answer did not arrive as a whole in time")
    return min(timeout_seconds, left_seconds)


@attrs.frozen(eq=False)
class _CheckedConnection:
    socket: socket.socket
    receiver: _Receiver
    stream: io.BufferedReader

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


@cache
def _default_context() -> ssl.SSLContext:
    return ssl.create_default_context()


def split_url(url: str) -> tuple[str, str]:
    start = url.find("/", url.index("://") + 3)
    return (url, "/") if start < 0 else (url[:start], url[start:])


def _encode(method: str, target: str, headers: Headers, body: bytes) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if body:
        lines.append(f"content-length: {len(body)}")
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1 or " " in target:
        raise ValueError("a request's target or headers have a space or an end of line in them")
    return b"%s\r\n\r\n%s" % (head.encode("latin-1"), body)


# ---- answers --------------------------------------------------------------------------------------------------------


def _receive(stream: io.BufferedReader, max_bytes: int) -> tuple[ServerAnswer, bool]:
    for _ in range(INTERIM_MAX_COUNT + 1):
        version, status, headers = _receive_head(stream)
        if not 100 <= status < 200:
            break
    else:
        raise NoServerAnswer(f"more than {INTERIM_MAX_COUNT} interim answers came, and no other")
    keeps = version == b"HTTP/1.1" and headers.get("connection", "").lower() != "close"
    if status in (204, 304):
        body = b""
    elif "transfer-encoding" in headers:
        body = _receive_chunks(stream, headers["transfer-encoding"], max_bytes)
    elif "content-length" in headers:
        body = _receive_bytes(stream, int(headers["content-length"]), max_bytes)
    else:
        body, keeps = _receive_rest(stream, max_bytes), False
    return ServerAnswer(status=status, headers=headers, body=body), keeps


def _receive_head(stream: io.BufferedReader) -> tuple[bytes, int, Headers]:
    first = stream.readline(LINE_MAX_BYTES)
    if not first:
        raise Hangup("the connection was closed without an answer")
    version, _, rest = first.partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise NoServerAnswer(f"the answer is not HTTP/1: {first[:80]!r}")
    headers: dict[str, str] = {}
    for _ in range(HEADERS_MAX_COUNT + 1):
        line = stream.readline(LINE_MAX_BYTES)
        if line in (b"\r\n", b"\n"):
            return version, int(rest[:3]), headers
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or not line.endswith(b"\n"):
            break
        headers[name.lower()] = value.strip()
    raise NoServerAnswer("the head of an answer is cut off, too long, or malformed")


def _receive_bytes(stream: io.BufferedReader, count: int, max_bytes: int) -> bytes:
    if not 0 <= count <= max_bytes:
        raise NoServerAnswer(f"the answer says that it has {count} bytes; taken: at most {max_bytes}")
    pieces: list[bytes] = []
    left = count
    while left and (piece := stream.read(min(left, PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    if left:
        raise NoServerAnswer(f"the answer was cut off after {count - left} of {count} bytes")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _receive_chunks(stream: io.BufferedReader, encoding: str, max_bytes: int) -> bytes:
    if encoding.lower() != "chunked":
        raise NoServerAnswer(f"an answer has the unknown transfer-encoding {encoding}")
    body = bytearray()
    while size := int(stream.readline(LINE_MAX_BYTES).partition(b";")[0], 16):
        body += _receive_bytes(stream, size, max_bytes - len(body))
        if stream.readline(LINE_MAX_BYTES).strip():
            raise NoServerAnswer("a chunk of an answer is longer than it says")
    for _ in range(HEADERS_MAX_COUNT + 1):  # trailers, which tell nothing that is asked for
        if not stream.readline(LINE_MAX_BYTES).strip():
            return bytes(body)
    raise NoServerAnswer("an answer has too many trailers")


def _receive_rest(stream: io.BufferedReader, max_bytes: int) -> bytes:
    body = bytearray()
    while piece := stream.read(min(PIECE_BYTES, max_bytes + 1 - len(body))):
        body += piece
        if len(body) > max_bytes:
            raise NoServerAnswer(f"the answer has more than {max_bytes} bytes")
    return bytes(body)
