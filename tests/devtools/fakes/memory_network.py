"""Connections in memory: streams, a network of clients with faults, and links between brokers that can be cut.

Waits are trio's, so they cost nothing under an autojump clock. Each call of a stream passes the scheduler once, as over
a socket. The pair of `trio.testing` passes it five times for each message, to find two tasks that use a stream at once;
a simulation spent a third of its steps there.
"""

from __future__ import annotations

import math
from contextlib import suppress

import attrs
import trio

from kafscale.concurrency.signals import Signal
from kafscale.testing.tcp_proxy import Link


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


@attrs.define(eq=False)
class MemoryStream(trio.abc.Stream):
    """One end. It accepts any amount of data; arrived data can be read after the other end is closed."""

    peer: MemoryStream = attrs.field(init=False)
    _arrived: bytearray = attrs.field(factory=bytearray, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    _receiver: trio.lowlevel.Task | None = attrs.field(default=None, init=False)  # who waits

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self.send_nowait(data)

    def send_nowait(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError
        if self.peer._is_closed:
            raise trio.BrokenResourceError("the other end is closed")
        self.peer._arrived += data
        self.peer._wake()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._arrived or self._is_closed or self.peer._is_closed:
            await trio.lowlevel.checkpoint()
        elif self._receiver is not None:
            raise trio.BusyResourceError("another task is receiving")
        else:
            await self._wait()
        if self._is_closed:
            raise trio.ClosedResourceError
        received = bytes(self._arrived[:max_bytes])
        del self._arrived[:max_bytes]
        return received

    async def _wait(self) -> None:
        def abort(_: object) -> trio.lowlevel.Abort:
            self._receiver = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._receiver = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)

    def _wake(self) -> None:
        if self._receiver is not None:
            trio.lowlevel.reschedule(self._receiver)
            self._receiver = None

    def close(self) -> None:
        self._is_closed = True
        self._arrived.clear()
        self._wake()
        self.peer._wake()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


def memory_stream_pair() -> tuple[MemoryStream, MemoryStream]:
    ours, theirs = MemoryStream(), MemoryStream()
    ours.peer, theirs.peer = theirs, ours
    return ours, theirs


@attrs.define(eq=False)
class Late:
    """Data on its way over cut links. While `is_kept` it arrives once the links are whole again, as TCP retransmits it;
    otherwise it is lost. Its sender may have given up.
    """

    is_kept: bool = attrs.field(default=False, init=False)
    _streams: dict[CutStream, None] = attrs.field(factory=dict, init=False)  # those that have some, in order
    _arrives: Signal = attrs.field(factory=Signal, init=False)

    def keep(self, stream: CutStream) -> None:
        self._streams[stream] = None

    async def wait(self) -> None:
        """Wait until the data kept now arrives; for ever if it is lost."""
        await (self._arrives.wait() if self.is_kept else trio.sleep_forever())

    def arrive(self) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams:
            stream.arrive()
        self._arrives.wake()


@attrs.define(eq=False)
class CutStream(trio.abc.Stream):
    """One end of a connection of broker `ours` to broker `theirs`; a cut link makes its data `late`, or loses it.

    `cuts` are the links (from, to) that carry nothing. Sent data is on its way for `seconds`.
    """

    stream: MemoryStream
    cuts: set[tuple[int, int]]
    ours: int
    theirs: int
    late: Late = attrs.field(factory=Late)
    seconds: float = 0.0
    _kept: bytearray = attrs.field(factory=bytearray, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self.seconds:
            await trio.sleep(self.seconds)
        if (self.ours, self.theirs) in self.cuts or self._kept:
            await trio.lowlevel.checkpoint()
            if self.late.is_kept:
                self._kept += data
                self.late.keep(self)
            return
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        received = await self.stream.receive_some(max_bytes)
        while (self.theirs, self.ours) in self.cuts:
            await self.late.wait()
        return received

    async def aclose(self) -> None:
        self._is_closed = True
        if self._kept:
            await trio.lowlevel.checkpoint()  # the other end hears of it behind what was sent before
        else:
            await self.stream.aclose()

    def arrive(self) -> None:
        kept, self._kept = self._kept, bytearray()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            self.stream.send_nowait(kept)
        if self._is_closed:
            self.stream.close()
