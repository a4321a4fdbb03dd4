"""The process of `kafscale serve`: a broker, signals, and what the interpreter is told so that it wastes no time."""

from __future__ import annotations

import gc
import os
import signal

import trio

from kafscale.broker import Broker
from kafscale.broker_security import reload_on_signal
from kafscale.config import Address, Settings
from kafscale.descriptors import raise_limit
from kafscale.errors import DeclaredDead
from kafscale.malloc import keep_freed_memory

# For the buffers of reads, of 256 KiB. 16 KiB batches, 64 in flight, cost 26.1 us like this, 31.0 without, and on 16
# partitions 30.5 and 34.6.
KEPT_FREED_BYTES, KEPT_BLOCK_MAX_BYTES = 4 << 20, 1 << 20
COLLECTED_AFTER_COUNT = 50_000  # objects made and not freed since the last collection


async def serve(settings: Settings) -> None:
    """Run a broker until SIGTERM or SIGINT, and print the line that says it is ready: this is `kafscale serve`.

    Raises DeclaredDead where it should be run anew, and what `Broker.run` does.
    """
    raise_limit()
    _collect_seldom()
    broker = Broker(settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(_stop_on_signal, broker, nursery.cancel_scope)
        nursery.start_soon(reload_on_signal, settings, broker.reload_files)
        try:
            await broker.run(task_status=_ReadyLine())
        except* DeclaredDead:
            if not broker.is_stopping:
                raise
        nursery.cancel_scope.cancel()


class _ReadyLine:
    """Prints where the broker can be reached, once it can be."""

    def started(self, value: Broker | None = None) -> None:
        broker = value
        assert broker is not None
        first, *others = [str(Address(each.host, each.port)) for each in broker.listeners]
        admin = Address(broker.admin.host, broker.admin.port)
        _calm_collector()
        keep_freed_memory(kept_bytes=KEPT_FREED_BYTES, block_max_bytes=KEPT_BLOCK_MAX_BYTES)
        print(f"kafscale is ready: kafka {first} admin {admin}", *others, flush=True)


def _calm_collector() -> None:
    """Do not look for cycles among what the start has made, which stays."""
    gc.collect()
    gc.freeze()


def _collect_seldom() -> None:
    """Look for cycles seldom.

    What a start makes stays, and appended batches live until they are flushed: with Python's own threshold of 700 they
    are looked at again and again and for nothing. To know a group takes 71 us like this, 102 without; 1 KiB batches, 64
    in flight, cost 31.8 us, 36.4 without.
    """
    gc.set_threshold(COLLECTED_AFTER_COUNT, 10, 10)


async def _stop_on_signal(broker: Broker, everything: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
    """The first signal drains, or ends a start that is under way. A second one exits at once.

    Nothing is lost by either: what was acknowledged is durable.
    """
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        stopping = False
        async for number in signals:
            if stopping:
                os._exit(128 + number)
            stopping = True
            if broker.is_ready:
                broker.stop()
            else:
                everything.cancel()
