"""A whole broker without a socket, a file or a thread: for tests on an autojump clock.

Disk, store and metadata live in `StorageParts` that outlast it, so a test can crash it and start the next one on them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from kafscale.api.handling.calls import Peer
from kafscale.broker import Broker
from kafscale.broker_storage import StorageParts
from kafscale.client.connection import Connection
from kafscale.config import Address, SecurityProtocol, Settings, StoreUrl
from kafscale.errors import BrokerUnavailable
from kafscale.store.memory import MemoryStore
from kafscale.testing.broker_faults import FaultyDispatcher, RequestFault
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.metadata import MemoryMetadataStore
from tests.devtools.fakes.memory_network import MemoryStream, memory_stream_pair
from tests.devtools.fakes.stream_transport import StreamTransport

UNPACED = 100_000_000  # objects a minute, as a test of the flush interval wants
POOL_BYTES = 4 << 20  # small, so that a test fills it soon and a thousand brokers fit
CACHE_BYTES = 1 << 20


def memory_parts() -> StorageParts:
    return StorageParts(store=MemoryStore(), metadata=MemoryMetadataStore(), disk=MemoryDisk())


def memory_settings(**changes: Any) -> Settings:
    """Settings of a small broker that touches nothing outside of memory."""
    chosen: dict[str, Any] = {
        "data_dir": Path("unused"),
        "store": StoreUrl(scheme="memory"),
        "chunk_pool_bytes": POOL_BYTES,
        "wal_segment_bytes": 256 << 10,
        "cache_bytes": CACHE_BYTES,
        "readahead_bytes": CACHE_BYTES // 4,
        "flush_objects_per_minute": UNPACED,
    }
    return Settings(**(chosen | changes))


@attrs.define(eq=False)
class MemoryBroker:
    broker: Broker
    nursery: trio.Nursery

    def open_stream(
        self, listener_name: str = "PLAINTEXT", *, protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    ) -> MemoryStream:
        """Connect a client; the broker serves the other end. Raises BrokerUnavailable once it has ended."""
        ours, theirs = memory_stream_pair()
        peer = Peer(
            host="192.0.2.1",
            port=1024,
            listener_name=listener_name,
            reached_host="192.0.2.2",
            reached_port=9092,
            security_protocol=protocol,
        )
        try:
            self.broker.connections.start_soon(self.broker.acceptor.serve, StreamTransport(theirs), peer)
        except RuntimeError:  # its nursery is closed
            raise BrokerUnavailable("it has ended") from ConnectionRefusedError()
        return ours

    async def connect(self, protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT) -> Connection:
        """Connect the project's own client, which negotiates versions first."""
        return await Connection.over(self.open_stream(protocol=protocol), Address("192.0.2.2", 9092))


@asynccontextmanager
async def memory_broker(
    parts: StorageParts, settings: Settings | None = None, *, request_faults: list[RequestFault] | None = None
) -> AsyncIterator[MemoryBroker]:
    """Run a broker for the block; at its end it is stopped in order. `request_faults` may be added to meanwhile."""
    make_dispatcher = partial(FaultyDispatcher, faults=[] if request_faults is None else request_faults)
    broker = Broker(settings or memory_settings(), make_dispatcher=make_dispatcher)
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: broker.run_on(parts, task_status=task_status))
        async with trio.open_nursery() as clients:
            yield MemoryBroker(broker, clients)
            broker.stop()
