"""Two ends of a connection in memory, for a client and a broker in one process.

Each call passes the scheduler once, as over a socket. The pair of `trio.testing` passes it five times for each message,
to find two tasks that use a stream at once; a simulation spent a third of its steps there.
"""

from __future__ import annotations

import attrs
import trio


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
