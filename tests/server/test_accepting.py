"""A time without descriptors passes for those who listen."""

from __future__ import annotations

import errno
import logging

import pytest
import trio

from kafscale.server.accepting import accept_all
from kafscale.server.quiet_log import QuietLog

logger = logging.getLogger("kafscale.test")


class ScarceListener(trio.abc.Listener[trio.abc.Stream]):
    """Gives what it was made with, one for each call; then nothing comes any more."""

    def __init__(self, *outcomes: OSError | trio.abc.Stream) -> None:
        self.outcomes = list(outcomes)
        self.closed = False

    async def accept(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if not self.outcomes:
            await trio.sleep_forever()
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    async def aclose(self) -> None:
        self.closed = True
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_a_shortage_of_descriptors_is_logged_once_at_start_and_once_at_end(
    autojump_clock, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    caplog.set_level(logging.WARNING)
    streams = [trio.testing.memory_stream_pair()[0] for _ in range(2)]
    listener = ScarceListener(*[OSError(error, "none left")] * 50, *streams)
    served: list[object] = []

    async def handle(stream: object) -> None:
        served.append(stream)

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as acceptors:

            async def accept() -> None:
                await accept_all([listener], handle, name="PLAINTEXT", nursery=nursery, quiet=QuietLog(logger))

            acceptors.start_soon(accept)
            await trio.sleep(4)
            assert not served
            await trio.sleep(2)
            acceptors.cancel_scope.cancel()
    assert served == streams
    assert listener.closed
    assert [record.exc_info for record in caplog.records] == [None, None]
    assert "PLAINTEXT wait until there is room" in caplog.messages[0]
    assert "PLAINTEXT are accepted again" in caplog.messages[1]


async def test_other_accept_errors_end_the_accept_loop() -> None:
    listener = ScarceListener(OSError(errno.EBADF, "closed"))
    with pytest.RaisesGroup(OSError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await accept_all([listener], trio.aclose_forcefully, name="x", nursery=nursery, quiet=QuietLog(logger))
