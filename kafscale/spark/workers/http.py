"""HTTP for tasks of a Spark job: blocking, one connection per thread at a time, kept for the next request.

httpx's own transport would do, but for its import of trio; the standard library's client carries the requests.
"""

from __future__ import annotations

import http.client
import ssl
import threading
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

import attrs
import httpx

IDLE_MAX_COUNT = 64  # connections kept per host


@attrs.define(eq=False, kw_only=True, repr=False)
class BlockingTransport(httpx.BaseTransport):
    """May be used by many threads at once. Responses are read whole.

    ssl_context: None for the default one.
    """

    timeout_seconds: float
    ssl_context: ssl.SSLContext | None = None
    _idle: dict[tuple[str, str], list[http.client.HTTPConnection]] = attrs.field(factory=dict, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send, and receive the whole response. Raises httpx.TransportError.

        A kept connection may have been closed by the server meanwhile: then one more is tried, which is safe since all
        that Spark's readers send are reads.
        """
        try:
            connection = self._take_idle(request.url)
            if connection is not None:
                with suppress(http.client.RemoteDisconnected, ConnectionError):
                    return self._exchange(connection, request)
            return self._exchange(self._connect(request.url), request)
        except (OSError, http.client.HTTPException) as exc:
            raise httpx.NetworkError(str(exc) or type(exc).__name__, request=request) from exc

    def close(self) -> None:
        """Close what is idle."""
        with self._lock:
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()

    def _exchange(self, connection: http.client.HTTPConnection, request: httpx.Request) -> httpx.Response:
        keep = False
        try:
            connection.putrequest(
                request.method, request.url.raw_path.decode("ascii"), skip_host=True, skip_accept_encoding=True
            )
            for name, value in request.headers.items():
                connection.putheader(name, value)
            connection.endheaders(request.read() or None)
            response = connection.getresponse()
            body = response.read()
            keep = not response.will_close
            return httpx.Response(response.status, headers=response.getheaders(), content=body, request=request)
        finally:
            if keep:
                self._put_idle(request.url, connection)
            else:
                connection.close()

    def _connect(self, url: httpx.URL) -> http.client.HTTPConnection:
        parts: SplitResult = urlsplit(str(url))
        assert parts.hostname is not None
        if parts.scheme == "https":
            context = self.ssl_context or ssl.create_default_context()
            return http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=self.timeout_seconds, context=context
            )
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=self.timeout_seconds)

    def _take_idle(self, url: httpx.URL) -> http.client.HTTPConnection | None:
        with self._lock:
            connections = self._idle.get((url.scheme, url.netloc.decode("ascii")))
            return connections.pop() if connections else None

    def _put_idle(self, url: httpx.URL, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            connections = self._idle.setdefault((url.scheme, url.netloc.decode("ascii")), [])
            if len(connections) < IDLE_MAX_COUNT:
                connections.append(connection)
                return
        connection.close()
