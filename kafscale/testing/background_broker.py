"""A broker on a free port, in a thread of the test's process; the fixture `kafscale_broker` gives one.

Its disk, store and metadata are in memory and survive a `restart` or a `crash`. Clients connect through a `TcpProxy`,
which keeps the port while the broker is down. Methods may be called from any thread; they block for milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import TypeVar, Unpack

import attrs
import trio

from kafscale.api.handling.partitions import led_partition
from kafscale.broker import Broker
from kafscale.broker_security import open_security
from kafscale.broker_storage import StorageParts
from kafscale.buffers import Buffer
from kafscale.client import IsolationLevel
from kafscale.client.consumer import AbortedFilter, AbortedFrom
from kafscale.cluster.coordinator.entries import InternalLog, RecordsEntry
from kafscale.cluster.registries.topic_records import Topic
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
from kafscale.testing.records import RecordFields, StoredRecord, new_record, stored, told_of
from kafscale.testing.tcp_proxy import TcpProxy
from kafscale.testing.trio_thread import TrioThread
from kafscale.wire.batch_header import batches, parse_header
from kafscale.wire.client_rules import partition_of
from kafscale.wire.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from kafscale.wire.records import Record, iterate_records

__tracebackhide__ = True  # pytest shows the line of the test instead

HOST = "127.0.0.1"
READ_BYTES = 1 << 20
LOOK_SECONDS = 0.02  # between two looks at what came
# Defaults that differ from a broker's: less memory, and short sessions are allowed.
DEFAULTS = {
    "chunk_pool_bytes": "64MiB",
    "wal_segment_bytes": "1MiB",  # allocated at start; 16 MiB take 80 ms more
    "group_min_session_timeout_ms": "100ms",
}
OWN_OPTIONS = frozenset({"listeners", "advertised_listeners", "admin_listen", "data_dir", "store"})


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

    def produce(self, topic: str, value: bytes | str | None, **fields: Unpack[RecordFields]) -> StoredRecord:
        """Write one record without using the network, and return it as stored; None is a tombstone.

        fields: key, headers, timestamp_ms, partition. Without a partition the key chooses it, as Kafka's clients do;
        without a key it is 0. A missing topic is created unless `auto_create_topics` is off. Raises KafkaError,
        BrokerUnavailable while the broker is down.
        """
        return self._thread.call(self._produce, topic, new_record(value, fields), fields.get("partition"))

    def wait_for(
        self, topic: str, count: int = 1, *, timeout_seconds: float = 10.0, isolation_level: str = "read_uncommitted"
    ) -> list[StoredRecord]:
        """Wait until a topic has this many records, and return all it has, by partition and offset.

        It blocks: from asyncio or trio call it in a thread. Raises AssertionError with the records that are there.
        """
        end = time.monotonic() + timeout_seconds
        while True:
            try:
                found, missing = self.records(topic, isolation_level=isolation_level), ""
            except (KafkaError, BrokerUnavailable) as exc:
                found, missing = [], f"; {exc}"
            if len(found) >= count:
                return found
            if time.monotonic() >= end:
                wanted = f"of {count} records after {timeout_seconds:g} s{missing}"
                raise AssertionError(told_of(topic, found, wanted))
            time.sleep(LOOK_SECONDS)

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

    def _known(self, topic: str) -> Topic:
        known = self._running().services.topics.get(topic)
        if known is None:
            raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{topic}'")
        return known

    async def _create_topic(self, new: NewTopic) -> None:
        [outcome] = await self._running().services.topics.create([new])
        if isinstance(outcome, KafkaError):
            raise outcome

    async def _produce(self, topic: str, record: Record, partition: int | None) -> StoredRecord:
        services = self._running().services
        if services.topics.get(topic) is None and self.settings.auto_create_topics:
            await self._create_topic(NewTopic(name=topic))
        known = self._known(topic)
        if partition is None:
            partition = 0 if record.key is None else partition_of(record.key, known.partition_count)
        if not 0 <= partition < known.partition_count:
            raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION, f"topic '{topic}' has {known.partition_count} partitions")
        entry = RecordsEntry(led_partition(services, topic, partition), [record])
        appended = await InternalLog(services.log).append([entry], time.time_ns() // 1_000_000)
        await appended.wait()
        return stored(partition, attrs.evolve(record, offset=appended.base_offset))

    async def _records(self, topic: str, isolation_level: IsolationLevel) -> list[StoredRecord]:
        services = self._running().services
        known = self._known(topic)
        found: list[StoredRecord] = []
        for index in range(known.partition_count):
            partition = services.log.partition_named(topic, index)
            assert partition is not None
            offset, committed = partition.log_start_offset, isolation_level is IsolationLevel.READ_COMMITTED
            while offset < (partition.last_stable_offset if committed else partition.high_watermark):
                slices = await services.log.reader.read(partition, offset, READ_BYTES, committed=committed)
                assert slices is not None
                records = consumed(slices.buffers, slices.aborted if committed else ())
                found += [stored(index, record) for record in records if record.offset >= offset]
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
