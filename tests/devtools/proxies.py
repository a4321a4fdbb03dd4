"""Bad lines in a thread of their own, for tests that block: `kafscale.testing.tcp_proxy`, told from another thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
import trio

from kafscale.config import Address
from kafscale.testing.tcp_proxy import TcpProxy, Way


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
def lines_to(*upstreams: Address) -> Iterator[Sequence[Line]]:
    """Run a proxy to each of these for the block."""
    lines: list[Line] = []
    began, stopping = threading.Event(), trio.Event()

    async def run() -> None:
        token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            for each in upstreams:
                lines.append(Line(await nursery.start(TcpProxy(each).run), token))
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
