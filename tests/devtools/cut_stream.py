"""Connections between brokers over links that can be cut, in one direction or both, while they are open."""

from __future__ import annotations

import attrs
import trio

from tests.devtools.memory_stream import MemoryStream


@attrs.define(eq=False)
class CutStream(trio.abc.Stream):
    """One end of a connection of broker `ours` to broker `theirs`: what a cut link does not carry is late for ever.

    `cuts` are the links that carry nothing, from whom to whom; whoever cuts changes the set.
    """

    stream: MemoryStream
    cuts: set[tuple[int, int]]
    ours: int
    theirs: int

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if (self.ours, self.theirs) in self.cuts:
            await trio.lowlevel.checkpoint()
            return
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        received = await self.stream.receive_some(max_bytes)
        if (self.theirs, self.ours) in self.cuts:
            await trio.sleep_forever()
        return received

    async def aclose(self) -> None:
        await self.stream.aclose()
