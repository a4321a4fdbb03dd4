"""A network in memory with faults: delays, little bandwidth, resets, and connections that fall silent.

    network = MemoryNetwork()
    stream = network.connect(broker.open_stream())    # a client's end
    network.delay_seconds = 0.05                      # each way
    network.set_bandwidth(100_000)
    stream.fall_silent()                              # half-open: drops all data in both directions
    stream.cut()                                      # reset

Waits are trio's, so they cost nothing under an autojump clock.
"""

from __future__ import annotations

import math

import attrs
import trio

from kafscale.testing.tcp_proxy import Link
from tests.devtools.fakes.memory_stream import MemoryStream


@attrs.define(eq=False)
class MemoryNetwork:
    """State that all connections share. `streams` are the clients' ends that are open."""

    delay_seconds: float = 0.0
    streams: list[MemoryConnection] = attrs.field(factory=list, init=False)
    _to_broker: Link = attrs.field(factory=lambda: Link(math.inf), init=False)
    _to_client: Link = attrs.field(factory=lambda: Link(math.inf), init=False)

    def connect(self, ends: MemoryStream) -> MemoryConnection:
        self.streams.append(MemoryConnection(ends, self))
        return self.streams[-1]

    def set_bandwidth(self, bytes_per_second: float) -> None:
        """Limit each direction, over all connections together; `math.inf` for no limit."""
        self._to_broker.bytes_per_second = self._to_client.bytes_per_second = bytes_per_second

    def heal(self) -> None:
        """Remove delay and limit; reset connections that have fallen silent."""
        self.delay_seconds = 0.0
        self.set_bandwidth(math.inf)
        for stream in [stream for stream in self.streams if stream.is_silent]:
            stream.cut()

    async def carry(self, count: int, *, to_broker: bool) -> None:
        await (self._to_broker if to_broker else self._to_client).carry(count)
        if self.delay_seconds:
            await trio.sleep(self.delay_seconds)


@attrs.define(eq=False)
class MemoryConnection(trio.abc.Stream):
    """A client's end of a connection. Once it is cut it drops all data, even what is under way."""

    inner: MemoryStream
    network: MemoryNetwork
    is_silent: bool = attrs.field(default=False, init=False)
    _was_cut: trio.Event = attrs.field(factory=trio.Event, init=False)
    _arriving: bytes | bytearray = attrs.field(default=b"", init=False)  # for the next reader, if one was cancelled

    def cut(self) -> None:
        if self._was_cut.is_set():
            return
        self._was_cut.set()
        self.network.streams.remove(self)
        self.inner.close()

    def fall_silent(self) -> None:
        """Lose everything from now on, without a sign to either side."""
        self.is_silent = True

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._check()
        await self.network.carry(len(data), to_broker=True)
        self._check()
        if not self.is_silent:
            await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        self._check()
        if not self._arriving:
            self._arriving = await self.inner.receive_some(max_bytes)
        await self.network.carry(len(self._arriving), to_broker=False)
        if self.is_silent:
            await self._was_cut.wait()
        self._check()
        data, self._arriving = self._arriving, b""
        return data

    async def aclose(self) -> None:
        self.cut()
        await trio.lowlevel.checkpoint()

    def _check(self) -> None:
        if self._was_cut.is_set():
            raise trio.BrokenResourceError("the connection was reset")
