"""A transport of connections over any trio stream, such as one in memory."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from kafscale.store.file.open_files import FileRange, Sendable


@attrs.define(eq=False, repr=False)
class StreamTransport:
    """A transport over any trio stream."""

    stream: trio.abc.Stream

    async def receive(self, max_bytes: int) -> bytes:
        return bytes(await self.stream.receive_some(max_bytes))

    async def receive_into(self, buffer: memoryview) -> int:
        data = await self.stream.receive_some(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    async def wait_end(self) -> bool:
        """Wait for ever: such a stream can't be peeked at."""
        await trio.sleep_forever()
        raise AssertionError("this is never reached")

    async def wait_closed(self) -> None:
        await trio.sleep_forever()

    async def send(self, buffers: Sequence[Sendable]) -> None:
        await self.stream.send_all(
            b"".join(buffer.read(0, len(buffer)) if isinstance(buffer, FileRange) else buffer for buffer in buffers)
        )

    def untaken_bytes(self) -> int:
        return 0

    async def aclose(self) -> None:
        await self.stream.aclose()
