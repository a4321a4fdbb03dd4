"""The process of `kafscale serve`: a broker, signals, and settings of the interpreter."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from kafscale import service_manager
from kafscale.broker import Broker
from kafscale.broker_security import reload_on_signal
from kafscale.config import Address, Listener, Settings
from kafscale.console_process import ConsoleProcess
from kafscale.descriptors import raise_limit
from kafscale.errors import DeclaredDead
from kafscale.malloc import keep_freed_memory

# For the buffers of reads, of 256 KiB. 16 KiB batches, 64 in flight, cost 26.1 us like this, 31.0 without, and on 16
# partitions 30.5 and 34.6.
KEPT_FREED_BYTES, KEPT_BLOCK_MAX_BYTES = 4 << 20, 1 << 20
COLLECTED_AFTER_COUNT = 50_000  # objects made and not freed since the last collection


async def serve(settings: Settings) -> None:
    """Run a broker until a signal; print its ready line. Raises DeclaredDead to start again, and as `Broker.run`."""
    raise_limit()
    # Objects of a start stay, and appended batches live until they are flushed: Python's threshold of 700 would scan
    # them often. Loading a group takes 71 us like this, 102 without; 1 KiB batches, 64 in flight, 31.8 and 36.4 us.
    gc.set_threshold(COLLECTED_AFTER_COUNT, 2, 500)
    async with _traced(settings) as broker, trio.open_nursery() as nursery:
        await nursery.start(_stop_on_signal, broker, nursery.cancel_scope)
        nursery.start_soon(reload_on_signal, settings, broker.reload_files)
        try:
            await broker.run(task_status=_Ready(settings, nursery))
        except* DeclaredDead:
            if not broker.is_stopping:
                raise
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _traced(settings: Settings) -> AsyncIterator[Broker]:
    """Make the broker, with traces if the settings name a collector. Raises StartupError."""
    if settings.traces_endpoint is None:
        yield Broker(settings)
        return
    try:
        from kafscale.broker_traces import BrokerTraces
    except ModuleNotFoundError as exc:
        from kafscale.extras import missing_extra

        raise missing_extra("traces", exc, what="--traces-endpoint") from exc
    traces = BrokerTraces.open(settings.traces_endpoint, settings)
    try:
        yield Broker(settings, make_dispatcher=traces.dispatcher, traces=traces)
    finally:
        await traces.aclose()


@attrs.frozen
class _Ready:
    """Prints the ready line of a broker, and runs its console."""

    settings: Settings
    nursery: trio.Nursery

    def started(self, value: Broker | None = None) -> None:
        broker = value
        assert broker is not None
        first, *others = [str(Address(listener.host, listener.port)) for listener in broker.listeners]
        admin = Address(broker.admin.host, broker.admin.port)
        gc.collect()
        gc.freeze()  # the objects of the start stay
        keep_freed_memory(kept_bytes=KEPT_FREED_BYTES, block_max_bytes=KEPT_BLOCK_MAX_BYTES)
        print(f"kafscale is ready: kafka {first} admin {admin}", *others, flush=True)
        service_manager.tell(service_manager.READY)
        listeners = [Listener(bound.name, bound.host, bound.port) for bound in broker.listeners]
        console = ConsoleProcess.open(self.settings, listeners, admin)
        if console is not None:
            print(f"kafscale console: {console.url}", flush=True)
            self.nursery.start_soon(console.run)


async def _stop_on_signal(broker: Broker, everything: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
    """Stop the broker, or cancel its start, on the first signal; exit at once on the second: all is durable."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        stopping = False
        async for number in signals:
            if stopping:
                os._exit(128 + number)
            stopping = True
            service_manager.tell(service_manager.STOPPING)
            if broker.is_ready:
                broker.stop()
            else:
                everything.cancel()
