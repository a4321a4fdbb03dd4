"""Bad lines in a thread of their own, for tests that block: `kafscale.testing.tcp_proxy`, told from another thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

import attrs
import trio

from kafscale.config import Address
from kafscale.testing.http_server import http_server
from kafscale.testing.tcp_proxy import TcpProxy, Way


class Cut(Enum):
    """The ways in which a line fails."""

    SILENT = "packets vanish"
    REFUSED = "connections are reset"
    UNAVAILABLE = "each request is answered with 503"


@attrs.frozen(eq=False)
class Line:
    """One proxy, which listens at `address`."""

    proxy: TcpProxy
    token: trio.lowlevel.TrioToken

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.proxy.port)

    def freeze(self, *ways: Way) -> None:
        trio.from_thread.run_sync(self.proxy.freeze, *ways, trio_token=self.token)

    def thaw(self) -> None:
        trio.from_thread.run_sync(self.proxy.thaw, trio_token=self.token)

    @contextmanager
    def cut(self, how: Cut) -> Iterator[None]:
        """Make the connection fail for the block."""
        with http_server(_Unavailable) as url:
            address, upstream = urlsplit(url), self.proxy.upstream

            def begin() -> None:
                if how is Cut.SILENT:
                    self.proxy.freeze()
                    return
                self.proxy.refusing = how is Cut.REFUSED
                self.proxy.upstream = Address(str(address.hostname), address.port or 0)
                self.proxy.reset()

            def end() -> None:
                self.proxy.refusing, self.proxy.upstream = False, upstream
                self.proxy.thaw()
                if how is not Cut.SILENT:
                    self.proxy.reset()

            trio.from_thread.run_sync(begin, trio_token=self.token)
            try:
                yield
            finally:
                trio.from_thread.run_sync(end, trio_token=self.token)


class _Unavailable(BaseHTTPRequestHandler):
    """Answers each request with 503."""

    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        with suppress(ConnectionError):  # of a line that is cut in another way
            super().handle()

    def parse_request(self) -> bool:
        if super().parse_request():
            self.rfile.read(int(self.headers.get("content-length", "0")))
            self.send_response(503)
            self.send_header("content-length", "0")
            self.end_headers()
        return False  # there is nothing else to do

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing to stderr."""


@contextmanager
def lines_to(*upstreams: Address) -> Iterator[Sequence[Line]]:
    """Run a proxy to each of these for the block."""
    lines: list[Line] = []
    began, stopping = threading.Event(), trio.Event()

    async def run() -> None:
        token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            for upstream in upstreams:
                lines.append(Line(await nursery.start(TcpProxy(upstream).run), token))
            began.set()
            await stopping.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(run,), name="proxies", daemon=True)
    thread.start()
    began.wait()
    try:
        yield lines
    finally:
        trio.from_thread.run_sync(stopping.set, trio_token=lines[0].token)
        thread.join()
