"""Connections between brokers over links that can be cut, in one direction or both, while they are open."""

from __future__ import annotations

from contextlib import suppress

import attrs
import trio

from kafscale.concurrency.signals import Signal
from tests.devtools.fakes.memory_stream import MemoryStream


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
