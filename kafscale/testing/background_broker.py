"""A broker on a free port, in a thread of the test's process; the fixture `kafscale_broker` gives one.

Its disk, store and metadata are in memory and survive a `restart` or a `crash`. Clients connect through a `TcpProxy`,
which keeps the port while the broker is down. Methods may be called from any thread; they block for milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import TypeVar

import attrs
import trio

from kafscale.broker import Broker
from kafscale.broker_security import open_security
from kafscale.broker_storage import StorageParts
from kafscale.buffers import Buffer
from kafscale.client import IsolationLevel
from kafscale.client.consumer import AbortedFilter, AbortedFrom
from kafscale.cluster.registries.topics import NewTopic
from kafscale.config import Address, Listener, SecurityProtocol, Settings, StoreUrl, load, options
from kafscale.errors import BrokerUnavailable, ConfigError, KafkaError
from kafscale.formats.transactions import AbortedTransaction
from kafscale.server.kafka.binding import open_listener
from kafscale.store.memory import MemoryStore
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.store.wrappers.retrying import RetryingStore, RetryPolicy
from kafscale.testing.broker_faults import BrokerFaults, FaultyDispatcher, RequestFault
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.testing.tcp_proxy import TcpProxy
from kafscale.testing.trio_thread import TrioThread
from kafscale.wire.batch_header import batches, parse_header
from kafscale.wire.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from kafscale.wire.records import Record, iterate_records

HOST = "127.0.0.1"
READ_BYTES = 1 << 20
# Defaults that differ from a broker's: less memory, and short sessions are allowed.
DEFAULTS = {
    "chunk_pool_bytes": "64MiB",
    "wal_segment_bytes": "1MiB",  # allocated at start; 16 MiB take 80 ms more
    "group_min_session_timeout_ms": "100ms",
}
OWN_OPTIONS = frozenset({"listeners", "advertised_listeners", "admin_listen", "data_dir", "store"})


@attrs.frozen(kw_only=True)
class StoredRecord:
    """A record in the log. Header names may repeat."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


@attrs.define(eq=False, repr=False)
class _Life:
    broker: Broker
    nursery: trio.Nursery
    ended: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False, repr=False)
class BackgroundBroker:
    """A running broker, made by `running_broker`. `faults` injects faults into it."""

    settings: Settings
    faults: BrokerFaults = attrs.field(init=False)
    _thread: TrioThread = attrs.field(factory=lambda: TrioThread("kafscale"), init=False)
    _proxy: TcpProxy = attrs.field(factory=lambda: TcpProxy(None), init=False)
    _store: FaultyStore = attrs.field(factory=lambda: FaultyStore(MemoryStore()), init=False)
    _metadata: MemoryMetadataStore = attrs.field(factory=MemoryMetadataStore, init=False)
    _disk: MemoryDisk = attrs.field(factory=MemoryDisk, init=False)
    _request_faults: list[RequestFault] = attrs.field(factory=list, init=False)
    _life: _Life | None = attrs.field(default=None, init=False)
    _topic_numbers: Iterator[int] = attrs.field(factory=lambda: count(1), init=False)

    def __attrs_post_init__(self) -> None:
        self.faults = BrokerFaults(self._thread, self._proxy, self._store, self._request_faults)

    def __repr__(self) -> str:
        """Return a short text; pytest would take 20 s to show the disk for a failed test."""
        return f"<broker at {self.bootstrap}>"

    @property
    def bootstrap(self) -> str:
        """Return clients' `bootstrap.servers`, which stays the same over restarts."""
        return f"{HOST}:{self._proxy.port}"

    # ---- its lives --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker after `stop`; do nothing if it runs."""
        self._thread.call(self._start)

    def stop(self) -> None:
        """Stop the broker after it has answered received requests. Connections are reset until it starts again."""
        self._thread.call(self._stop)

    def restart(self) -> None:
        self.stop()
        self.start()

    def crash(self) -> None:
        """Kill the broker like a power cut, and start it with the synced bytes of its disk."""
        self._thread.call(self._crash)
        self.start()

    # ---- topics -----------------------------------------------------------------------------------------------

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic. Raises KafkaError, BrokerUnavailable while the broker is down."""
        self._thread.call(self._create_topic, NewTopic(name=name, partition_count=partitions, overrides=config or {}))

    def new_topic(self, prefix: str = "topic", *, partitions: int = 1) -> str:
        """Create a topic with a new name, for tests that share a broker. Returns the name."""
        name = f"{prefix}-{next(self._topic_numbers)}"
        self.create_topic(name, partitions=partitions)
        return name

    def records(self, topic: str, *, isolation_level: str = "read_uncommitted") -> list[StoredRecord]:
        """Return the records that consumers can read, by partition and offset, without using the network.

        At `read_committed` without records of open and aborted transactions. Raises KafkaError for an unknown topic,
        BrokerUnavailable while the broker is down.
        """
        return self._thread.call(self._records, topic, IsolationLevel[isolation_level.upper()])

    # ---- in the thread ----------------------------------------------------------------------------------------

    async def _open(self) -> None:
        await self._thread.nursery.start(self._proxy.run)
        await self._start()

    async def _start(self) -> None:
        if self._life is None:
            self._life = await self._thread.nursery.start(self._live)
            self._proxy.upstream = Address(HOST, self._life.broker.listeners[0].port)

    async def _live(self, *, task_status: trio.TaskStatus[_Life]) -> None:
        (listener,) = self.settings.listeners
        advertised = attrs.evolve(listener, port=self._proxy.port)
        settings = attrs.evolve(self.settings, advertised_listeners=(advertised,))
        broker = Broker(settings, make_dispatcher=partial(FaultyDispatcher, faults=self._request_faults))
        store = RetryingStore(self._store, RetryPolicy(), Random(), StoreMetrics.register(broker.metrics))
        parts = StorageParts(store=store, metadata=self._metadata, disk=self._disk)
        broker.security = open_security(settings)
        broker.listeners = [await open_listener(listener, settings)]
        async with trio.open_nursery() as nursery:
            life = _Life(broker, nursery)
            await nursery.start(partial(broker.run_on, parts))
            task_status.started(life)
        life.ended.set()

    async def _stop(self) -> None:
        if (life := self._end_life()) is not None:
            life.broker.stop()
            await life.ended.wait()

    async def _crash(self) -> None:
        self._disk = self._disk.crash()
        if (life := self._end_life()) is not None:
            self._proxy.reset()
            life.nursery.cancel_scope.cancel()
            await life.ended.wait()

    def _end_life(self) -> _Life | None:
        life, self._life = self._life, None
        self._proxy.upstream = None
        return life

    def _running(self) -> Broker:
        if self._life is None:
            raise BrokerUnavailable("the broker is stopped; start it first")
        return self._life.broker

    async def _create_topic(self, new: NewTopic) -> None:
        [outcome] = await self._running().services.topics.create([new])
        if isinstance(outcome, KafkaError):
            raise outcome

    async def _records(self, topic: str, isolation_level: IsolationLevel) -> list[StoredRecord]:
        services = self._running().services
        known = services.topics.get(topic)
        if known is None:
            raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{topic}'")
        found: list[StoredRecord] = []
        for index in range(known.partition_count):
            partition = services.log.partition_named(topic, index)
            assert partition is not None
            offset, committed = partition.log_start_offset, isolation_level is IsolationLevel.READ_COMMITTED
            while offset < (partition.last_stable_offset if committed else partition.high_watermark):
                slices = await services.log.reader.read(partition, offset, READ_BYTES, committed=committed)
                assert slices is not None
                records = consumed(slices.buffers, slices.aborted if committed else ())
                found += [_stored(index, record) for record in records if record.offset >= offset]
                slices.release()
                offset = slices.end_offset
        return found


AnyBroker = TypeVar("AnyBroker", bound=BackgroundBroker)


@contextmanager
def running_broker(**given: object) -> Iterator[BackgroundBroker]:
    """Run a broker for the block. `given` are options of `kafscale serve`, such as `segment_bytes="1MiB"`.

    Raises ConfigError for an unknown option, or one that the fixture sets itself.
    """
    with running(BackgroundBroker(settings_of(given))) as broker:
        yield broker


@contextmanager
def running(broker: AnyBroker) -> Iterator[AnyBroker]:
    broker._thread.start()
    try:
        broker._thread.call(broker._open)
        yield broker
    finally:
        broker._thread.stop()


def settings_of(given: Mapping[str, object], protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT) -> Settings:
    """Return settings of options by name, with underscores for dashes, over the defaults of this module."""
    by_name = {option.name.replace("-", "_"): option for option in options() if option.attribute not in OWN_OPTIONS}
    if unknown := sorted(given.keys() - by_name.keys()):
        raise ConfigError(f"'{unknown[0]}' is not an option of a broker under test; allowed: {', '.join(by_name)}")
    chosen = {by_name[name].attribute: _as_text(value) for name, value in given.items()}
    return attrs.evolve(
        load(DEFAULTS | chosen, {}).settings,
        data_dir=Path("unused"),
        store=StoreUrl(scheme="memory"),
        listeners=(Listener(protocol.value, HOST, 0),),
    )


def _as_text(value: object) -> str | tuple[str, ...]:
    """Return an option's value as on the command line; a repeatable option takes a list."""
    return tuple(map(str, value)) if isinstance(value, list | tuple) else str(value)


def consumed(buffers: Iterable[Buffer], aborted: Iterable[AbortedTransaction]) -> Iterator[Record]:
    """Iterate over a fetch's records without those of aborted transactions."""
    dropped = AbortedFilter.of(AbortedFrom(found.producer_id, found.first_offset) for found in aborted)
    for batch in batches(memoryview(b"".join(buffers))):
        header = parse_header(batch)
        if not dropped.have(header, batch) and not header.is_control:
            yield from iterate_records(batch)


def _stored(partition: int, record: Record) -> StoredRecord:
    return StoredRecord(
        partition=partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
    )
