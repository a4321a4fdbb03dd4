"""Accepts connections; a lack of descriptors or memory passes.

trio's own `serve_listeners` logs a traceback each tenth of a second then; this logs its begin and end. Connections wait
in the kernel's queue meanwhile.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn

import trio

from kafscale.descriptors import NONE_LEFT_ERRORS
from kafscale.server.quiet_log import QuietLog

PASSING_ERRORS = NONE_LEFT_ERRORS | {errno.ENOMEM, errno.ENOBUFS}
PAUSE_SECONDS = 0.1  # trio's; a connection that waits so long is not noticed, and a core is not kept busy

Handler = Callable[[trio.SocketStream], Awaitable[object]]


async def accept_all(
    listeners: Sequence[trio.SocketListener],
    handler: Handler,
    *,
    name: str,
    nursery: trio.Nursery,
    quiet: QuietLog,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Run the handler for each connection in `nursery`, until cancelled; then the listeners are closed.

    `name` names the listeners in the log. A stream is closed when its handler ends.
    """
    async with trio.open_nursery() as acceptors:
        for listener in listeners:
            acceptors.start_soon(_accept, listener, handler, name, nursery, quiet)
        task_status.started()
    raise AssertionError("acceptors never end by themselves")


async def _accept(
    listener: trio.SocketListener, handler: Handler, name: str, nursery: trio.Nursery, quiet: QuietLog
) -> NoReturn:
    lacks = False
    async with listener:
        while True:
            try:
                stream = await listener.accept()
            except OSError as exc:
                if exc.errno not in PASSING_ERRORS:
                    raise
                if not lacks:
                    lacks = True
                    quiet.tell(
                        "connections wait",
                        "new connections of %s wait until there is room for them: %s; if it lasts, raise the limit of "
                        "open files, such as by `ulimit -n`, or close what else has many open on this machine",
                        name,
                        os.strerror(exc.errno or 0),
                    )
                await trio.sleep(PAUSE_SECONDS)
                continue
            if lacks:
                lacks = False
                quiet.tell("connections wait", "new connections of %s are accepted again", name)
            nursery.start_soon(_handle, stream, handler)


async def _handle(stream: trio.SocketStream, handler: Handler) -> None:
    try:
        await handler(stream)
    finally:
        await trio.aclose_forcefully(stream)
