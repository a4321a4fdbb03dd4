"""Whole brokers, one bucket: what is left after a crash that takes the disk along, or when another takes over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.broker import Broker
from kafscale.broker_storage import StorageParts
from kafscale.client.connection import Connection
from kafscale.config import Durability
from kafscale.errors import BrokerUnavailable, Fenced, KafkaError, KafScaleError, StartupError, StoreUnavailable
from kafscale.formats import log_end as producers
from kafscale.metrics import Metrics
from kafscale.store.memory import MemoryStore
from kafscale.store.opening.opening import wrap_store
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On, StoreGate
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import codec
from kafscale.wire.batch_header import batches
from kafscale.wire.error_codes import (
    NONE,
    NOT_COORDINATOR,
    NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
)
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from kafscale.wire.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kafscale.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from kafscale.wire.records import ProducerStamp, Record, build_batch, iterate_records
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_settings
from tests.devtools.fakes.memory_log import append_nowait
from tests.devtools.fakes.transactional_producer import OLD, Producer, committed_values
from tests.static_member import StaticMember

MODES = list(Durability)
IN_BUCKET = [Durability.S3_WAL, Durability.SEGMENT]
TOPIC = "orders"
NO_PRODUCER = ProducerStamp()
CHECKPOINT_SECONDS = 15.0  # within which a change of the metadata is in the bucket, also in `wal`


@attrs.define(eq=False)
class Machine:
    """What a broker keeps its state in, apart from the bucket.

    Its store has one token, where a test does not want more to run at once: an operation that waits for a second one
    while it holds it would hang.
    """

    bucket: FaultyStore
    metadata: MemoryMetadataStore = attrs.field(factory=MemoryMetadataStore)
    disk: MemoryDisk = attrs.field(factory=MemoryDisk)
    tokens: int = attrs.field(default=1, kw_only=True)

    def parts(self) -> StorageParts:
        settings = memory_settings(s3_concurrency=self.tokens)
        views = wrap_store(self.bucket, settings, StoreMetrics.register(Metrics()))
        return StorageParts(store=views.background, metadata=self.metadata, disk=self.disk, views=views)


@attrs.define(eq=False)
class Running:
    """A broker that runs, and its client."""

    broker: Broker
    connection: Connection
    scope: trio.CancelScope
    ended_by: list[BaseException] = attrs.field(factory=list)
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def crash(self) -> None:
        self.scope.cancel()
        await self.ended.wait()

    async def create(self, name: str = TOPIC, partition_count: int = 2, **configs: str) -> None:
        wanted = CreatableTopic(
            name=name,
            num_partitions=partition_count,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
        )
        reply = await self.connection.request(CreateTopicsRequest(topics=[wanted]), CreateTopicsResponse)
        assert reply.topics[0].error_code == NONE

    async def produce(self, *values: bytes, partition: int = 0, stamp: ProducerStamp = NO_PRODUCER) -> int:
        batch = build_batch([Record(value=value) for value in values], producer=stamp)
        data = PartitionProduceData(index=partition, records=memoryview(batch))
        request = ProduceRequest(
            acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])]
        )
        answer = (await self.connection.request(request, ProduceResponse)).responses[0].partition_responses[0]
        if answer.error_code:
            raise BrokerUnavailable(f"error {answer.error_code}")
        return answer.base_offset

    async def values(self, partition: int = 0) -> list[bytes | None]:
        topic = self.broker.services.topics.get(TOPIC)
        assert topic is not None
        found: list[bytes | None] = []
        while True:
            wanted = FetchPartition(partition=partition, fetch_offset=len(found), partition_max_bytes=1 << 20)
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1 << 20,
                topics=[FetchTopic(topic=TOPIC, topic_id=topic.topic_id, partitions=[wanted])],
            )
            answer = (await self.connection.request(request, FetchResponse)).responses[0].partitions[0]
            assert answer.error_code == NONE
            if not answer.records:
                assert answer.high_watermark == len(found)
                return found
            for batch in batches(memoryview(b"".join([bytes(answer.records)]))):
                found += [record.value for record in iterate_records(batch) if record.offset >= len(found)]

    async def commit(self, offset: int, *, partition: int = 0) -> int:
        """The error code."""
        request = OffsetCommitRequest(
            group_id="billing",
            member_id="",
            topics=[
                OffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=[OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)],
                )
            ],
        )
        reply = await self.connection.request(request, OffsetCommitResponse)
        return reply.topics[0].partitions[0].error_code

    def committed(self) -> dict[int, int]:
        found = self.broker.services.groups.offsets("billing").get(TOPIC, {})
        return {partition: offset.offset for partition, offset in found.items()}

    async def producer_id(self) -> int:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        return (await self.connection.request(request, InitProducerIdResponse)).producer_id

    def producers(self, partition: int = 0) -> list[producers.Producer]:
        found = self.broker.services.log.partition_named(TOPIC, partition)
        assert found is not None
        return list(found.producers.producers.values())


@asynccontextmanager
async def running(machine: Machine, durability: Durability, **settings) -> AsyncIterator[Running]:
    """A broker for the block; at its end it is killed, unless it has ended before."""
    settings.setdefault("flush_interval_seconds", 3600.0)
    broker = Broker(memory_settings(durability=durability, **settings))
    scope = trio.CancelScope()
    ended: list[BaseException] = []
    started, finished = trio.Event(), trio.Event()

    async def live(*, task_status) -> None:
        with scope:
            try:
                await broker.run_on(machine.parts(), task_status=task_status)
            except Exception as exc:
                if not started.is_set():
                    raise
                ended.append(exc)
        finished.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(live)
        started.set()
        async with trio.open_nursery() as clients:
            connection = await MemoryBroker(broker, clients).connect()
            yield Running(broker, connection, scope, ended, finished)
            scope.cancel()
            await finished.wait()
            clients.cancel_scope.cancel()


async def stable_offset(client: Connection, version: int = 8) -> int:
    """What is committed for the first partition once no transaction is open. Raises KafkaError."""
    topics = [OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])]
    request = OffsetFetchRequest(
        group_id="billing",
        topics=topics,
        groups=[OffsetFetchRequestGroup(group_id="billing", topics=topics)],
        require_stable=True,
    )
    call = client.call(OffsetFetchRequest, OffsetFetchResponse, version=version)
    answer = await (await client.send_encoded(call, codec.encode(request, version))).wait()
    of_group = answer.groups[0] if version >= 8 else answer
    if of_group.error_code:
        raise KafkaError(of_group.error_code)
    (partition,) = of_group.topics[0].partitions
    return partition.committed_offset


async def segment_names(bucket: FaultyStore, partition: int = 0) -> list[str]:
    """The keys of the objects that a partition of each topic has."""
    async with aclosing(bucket.list("")) as pages:
        return [info.key async for page in pages for info in page if f"/{partition}/segment-" in info.key]


def leaf(exc: BaseException) -> BaseException:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc


@pytest.fixture
def bucket() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.mark.parametrize("durability", IN_BUCKET)
async def test_a_lost_disk_loses_nothing_that_was_acknowledged_in_the_bucket(autojump_clock, bucket, durability):
    async with running(Machine(bucket), durability) as first:
        await first.create(retention_ms="12345678")
        producer_id = await first.producer_id()
        stamp = ProducerStamp(producer_id, 0, 0)
        assert await first.produce(b"a", b"b", stamp=stamp) == 0
        assert await first.produce(b"c", partition=1) == 0
        assert await first.commit(2) == NONE
        assert await first.produce(b"d") == 2
        await first.crash()
    async with running(Machine(bucket), durability) as second:
        assert await second.values() == [b"a", b"b", b"d"]
        assert await second.values(1) == [b"c"]
        assert second.committed() == {0: 2}
        topic = second.broker.services.topics.get(TOPIC)
        assert (topic.partition_count, topic.overrides) == (2, {"retention.ms": "12345678"})
        assert await second.producer_id() > producer_id
        assert [each.producer_id for each in second.producers()] == [producer_id]
        assert await second.produce(b"a", b"b", stamp=stamp) == 0  # a duplicate
        assert await second.produce(b"e") == 3
        await second.crash()
    async with running(Machine(bucket), durability) as third:
        assert await third.values() == [b"a", b"b", b"d", b"e"]
        assert third.broker.services.node.broker_epoch == 2


async def test_in_wal_a_lost_disk_leaves_only_checkpointed_metadata_and_segments(autojump_clock, bucket):
    async with running(Machine(bucket), Durability.WAL, flush_interval_seconds=1.0) as first:
        await first.create()
        await first.produce(b"a", b"b")
        assert await first.commit(1) == NONE
        await trio.sleep(30)
        assert await first.commit(2) == NONE
        await first.produce(b"lost")
        await first.crash()
    async with running(Machine(bucket), Durability.WAL) as second:
        assert await second.values() == [b"a", b"b"]
        assert second.committed() == {0: 1}
        assert await second.produce(b"c") == 2


@pytest.mark.parametrize("durability", MODES)
async def test_no_producer_id_is_allocated_twice_after_a_lost_disk(autojump_clock, bucket, durability):
    """With `wal`, blocks that were reserved after the last checkpoint were reserved again after a lost disk."""
    ids: list[int] = []
    for _ in range(3):
        async with running(Machine(bucket), durability) as broker:
            ids += [await broker.producer_id() for _ in range(3)]
            await broker.crash()
    assert len(set(ids)) == 9


@pytest.mark.parametrize("durability", MODES)
async def test_a_crash_that_leaves_the_disk_loses_nothing(autojump_clock, bucket, durability):
    machine = Machine(bucket)
    expected: list[bytes] = []
    for life in range(4):
        async with running(machine, durability, flush_interval_seconds=1.0) as broker:
            if life == 0:
                await broker.create()
            assert await broker.values() == expected
            assert broker.committed() == ({0: life - 1} if life else {})
            for number in range(20):
                expected.append(b"%d-%d" % (life, number))
                await broker.produce(expected[-1])
                await trio.sleep(0.13 * life)
            assert await broker.commit(life) == NONE
            await broker.crash()
        machine = attrs.evolve(machine, disk=machine.disk.crash())


async def test_few_log_objects_accumulate_and_a_crash_during_a_flush_loses_no_records(autojump_clock, bucket):
    """A bucket that answered at once had 2,000 and more, of as many seconds as two checkpoints and a flush took."""

    async def objects_count() -> int:
        async with aclosing(bucket.list("_kafscale/default/wal/")) as pages:
            return sum([len(page) async for page in pages])

    values: list[list[bytes]] = [[], []]
    counts: list[int] = []

    async def produce(count: int) -> None:
        for number in range(count):
            values[number % 2].append(b"%d" % number)
            await first.produce(values[number % 2][-1], partition=number % 2)
            await trio.sleep(0.05)
            counts.append(await objects_count())

    settings = {"s3_wal_flush_objects_count": 32, "flush_interval_seconds": 60.0}
    async with running(Machine(bucket, tokens=16), Durability.S3_WAL, **settings) as first:
        await first.create()
        await produce(400)
        assert max(counts) < 100
        assert sum(counts) / len(counts) < 64
        gate = bucket.hold(On("put_if_absent", "*.kfs"))
        await produce(100)
        assert gate.arrived_count == 2
        await first.crash()
    bucket.heal()
    async with running(Machine(bucket), Durability.S3_WAL, **settings) as second:
        assert [await second.values(partition) for partition in range(2)] == values
        await trio.sleep(1200)
        puts_count = bucket.count("put*")
        await trio.sleep(1200)
        assert bucket.count("put*") == puts_count, "an idle broker writes nothing"


@pytest.mark.parametrize("durability", MODES)
async def test_an_orderly_stop_leaves_everything_in_the_bucket(autojump_clock, bucket, durability):
    async with running(Machine(bucket), durability) as first:
        await first.create()
        await first.produce(b"a")
        assert await first.commit(1) == NONE
        first.broker.stop()
        await first.ended.wait()
    async with running(Machine(bucket), durability) as second:
        assert await second.values() == [b"a"]
        assert second.committed() == {0: 1}


@pytest.mark.parametrize("durability", MODES)
async def test_an_orderly_stop_keeps_records_without_acknowledgement(autojump_clock, bucket, durability):
    """As of a producer with acks=0 that has gone: the connections have ended before its batch is durable."""
    machine = Machine(bucket, tokens=8)
    async with running(machine, durability) as first:
        await first.create()
        await first.produce(b"a")
        bucket.delay(On("put_if_absent", "*/wal/*"), 5.0)
        append_nowait(first.broker.services.log.partition_named(TOPIC, 0), b"b")
        first.broker.stop()
        await first.ended.wait()
    same_disk = machine if durability is Durability.WAL else Machine(bucket)  # in `wal` its log has it, at least
    async with running(same_disk, durability) as second:
        assert await second.values() == [b"a", b"b"]


@pytest.mark.parametrize("durability", IN_BUCKET)
async def test_an_older_broker_is_stopped_by_its_next_write(autojump_clock, bucket, durability):
    async with running(Machine(bucket), durability) as old:
        await old.create()
        await old.produce(b"a")
        async with running(Machine(bucket), durability) as new:
            # Within the 2 s in which the older one would see it by itself.
            with pytest.raises(BrokerUnavailable):  # the broker ends, and its connections with it
                await old.commit(1)
            await old.ended.wait()
            assert isinstance(leaf(old.ended_by[0]), Fenced)
            assert await new.values() == [b"a"]
            assert new.committed() == {}


async def test_a_segment_that_arrives_when_another_broker_has_listed_the_bucket_is_not_acknowledged(
    autojump_clock, bucket
):
    own = FaultyStore(bucket)
    async with running(Machine(own, tokens=64), Durability.SEGMENT) as old:
        await old.create()
        await old.produce(b"a")
        gate = own.hold(On("put*", "*/0/segment-*"))
        acknowledged: list[int] = []

        async def produce() -> None:
            with suppress(BrokerUnavailable):
                acknowledged.append(await old.produce(b"b"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            await gate.wait_arrived(2)
            async with running(Machine(bucket, tokens=64), Durability.SEGMENT) as new:
                gate.open()
                await old.ended.wait()
                assert isinstance(leaf(old.ended_by[0]), Fenced)
                assert acknowledged == []
                assert old.broker.services.log.partition_named(TOPIC, 0).high_watermark == 1  # nobody has read it
                assert await new.values() == [b"a"]
                nursery.cancel_scope.cancel()


async def test_a_segment_that_comes_when_readers_have_seen_another_ones_records_is_not_read(
    autojump_clock, bucket, caplog
):
    """Two brokers that were superseded had sent segments; the later one's came after a start had served the other's."""
    stores = FaultyStore(bucket), FaultyStore(bucket)
    machines = [Machine(store, tokens=64) for store in stores]

    async def produce(broker: Running, *values: bytes) -> None:
        with suppress(BrokerUnavailable, KafScaleError, trio.BrokenResourceError, trio.ClosedResourceError):
            await broker.produce(*values)
            raise AssertionError("acknowledged")

    async def arrives(held: int, gate: StoreGate) -> None:
        gate.open()
        with trio.fail_after(1):
            while len(await segment_names(bucket)) < held:
                await trio.sleep(0.01)

    async with trio.open_nursery() as nursery, running(machines[0], Durability.SEGMENT) as first:
        await first.create()
        await first.produce(b"a")
        gates = [store.hold(On("put*", "*/0/segment-*")) for store in stores]
        nursery.start_soon(produce, first, b"b 1", b"b 2", b"b 3")
        await gates[0].wait_arrived(2)
        async with running(machines[1], Durability.SEGMENT) as second:
            nursery.start_soon(produce, second, b"c 1", b"c 2")
            await gates[1].wait_arrived(2)
            await arrives(4, gates[0])
            async with running(Machine(bucket, tokens=64), Durability.SEGMENT) as third:
                seen = await third.values()
                assert seen == [b"a", b"b 1", b"b 2", b"b 3"]
                await arrives(6, gates[1])
                await third.crash()
            for _ in range(2):
                async with running(Machine(bucket, tokens=64), Durability.SEGMENT) as later:
                    assert await later.values() == seen
                    assert later.broker.services.log.late_count() == 1
                    await later.crash()
            async with running(Machine(bucket, tokens=64), Durability.SEGMENT) as last:
                assert await last.produce(b"d") == 4
                assert await last.values() == [*seen, b"d"]
        nursery.cancel_scope.cancel()
    assert "is not read: its broker wrote it after another one had taken over" in caplog.text


@pytest.mark.parametrize("damaged", [False, True])
async def test_segments_merged_after_the_checkpoint_of_a_start_are_read(autojump_clock, bucket, damaged):
    """And if it is damaged, what it was made of, which the checkpoint of that start knows, or no checkpoint does."""
    values = [b"%d" % number for number in range(24)]

    def generations(broker: Running) -> set[int]:
        partition = broker.broker.services.log.partition_named(TOPIC, 0)
        late = set(partition.late)
        assert not late
        return {segment.generation for segment in partition.manifest.segments}

    for produced in (0, 12):
        async with running(Machine(bucket, tokens=8), Durability.SEGMENT) as broker:
            if not produced:
                await broker.create()
            assert await broker.values() == values[:produced]
            for value in values[produced : produced + 12]:
                await broker.produce(value)
            await trio.sleep(CHECKPOINT_SECONDS / 2)  # the next checkpoint of the manifests has not come
            found = generations(broker)
            assert found == {0, 1}
            await broker.crash()
    names = [name for name in await segment_names(bucket) if name.endswith("-00001.kfs")]
    assert len(names) == 2
    if damaged:
        for name in names:
            await bucket.put(name, [bytes(len((await bucket.get(name)).data))])
    async with running(Machine(bucket, tokens=8), Durability.SEGMENT) as last:
        assert await last.values() == values
        assert last.broker.services.log.quarantined_count() == (2 if damaged else 0)


@pytest.mark.parametrize("durability", MODES)
async def test_a_start_writes_one_manifest_checkpoint_before_it_serves(autojump_clock, bucket, durability):
    machine = Machine(bucket, tokens=8)

    def writes() -> int:
        return len(
            [call for call in bucket.calls if call.operation == "put_if_absent" and "/manifests/" in call.keys[0]]
        )

    async with running(machine, durability) as first:
        await first.create()
        await first.produce(b"a")
        await first.broker.services.log.flusher.flush_all()
        await first.crash()
    assert writes() == 0
    for _ in range(3):
        async with running(machine, durability) as later:
            assert writes() == 1
            await later.crash()
    bucket.fail(On("put_if_absent", "*/manifests/*"))
    async with running(machine, durability) as last:  # nothing new is to be said
        await last.produce(b"b")
        await last.broker.services.log.flusher.flush_all()
        await last.crash()
    with pytest.raises(BaseExceptionGroup) as failed:
        async with running(machine, durability):
            pass
    assert isinstance(leaf(failed.value), StartupError)


async def test_in_segment_flushes_that_end_together_share_a_look_at_the_claim(autojump_clock, bucket):
    async with running(Machine(bucket, tokens=64), Durability.SEGMENT) as broker:
        await broker.create(partition_count=20)
        bucket.delay(On("*"), 0.05)
        before = bucket.count("get", "*/epoch")
        async with trio.open_nursery() as nursery:
            for partition in range(20):
                nursery.start_soon(lambda partition=partition: broker.produce(b"a", partition=partition))
        assert bucket.count("get", "*/epoch") - before <= 2


@pytest.mark.parametrize("durability", IN_BUCKET)
async def test_a_superseded_broker_does_not_call_a_producers_next_batch_out_of_order(
    autojump_clock, bucket, durability
):
    own = FaultyStore(bucket)
    async with running(Machine(own), durability) as old:
        await old.create()
        stamp = ProducerStamp(await old.producer_id(), 0, 0)
        await old.produce(b"a", stamp=stamp)
        gate = own.hold(On())
        async with running(Machine(bucket), durability) as new:
            await new.produce(b"b", stamp=attrs.evolve(stamp, base_sequence=1))
            with trio.move_on_after(1) as patience:
                await old.produce(b"c", stamp=attrs.evolve(stamp, base_sequence=2))
            assert patience.cancelled_caught  # it can't know
            gate.open()
            own.heal()
            with suppress(BrokerUnavailable):
                await old.produce(b"c", stamp=attrs.evolve(stamp, base_sequence=2))
            await old.ended.wait()
            assert await new.produce(b"c", stamp=attrs.evolve(stamp, base_sequence=2)) == 2


@pytest.mark.parametrize("durability", MODES)
@pytest.mark.parametrize("asks_for", ["its end", "offsets in it"])
async def test_a_superseded_coordinator_does_not_fence_a_producer_of_its_successor(
    autojump_clock, bucket, durability, asks_for
):
    async def ask() -> int:
        if asks_for == "its end":
            return await producer.end(committed=True)
        (error_code,) = await producer.send_offsets("billing", {0: 1})
        return error_code

    own = FaultyStore(bucket)
    async with running(Machine(own, tokens=64), durability) as old:
        await old.create()
        former = Producer(old.connection)
        assert await former.init() == NONE
        await former.commit_offsets("billing", {0: 0})
        assert await former.end(committed=True) == NONE
        await old.broker.services.log.flusher.flush_all()
        await trio.sleep(CHECKPOINT_SECONDS)
        gate = own.hold(On())
        async with running(Machine(bucket, tokens=64), durability) as new:
            producer = Producer(new.connection)
            assert await producer.init() == NONE
            await producer.write(0, b"a")
            producer.client = old.connection
            with trio.move_on_after(1) as patience:
                await ask()
            assert patience.cancelled_caught  # it can't know
            gate.open()
            own.heal()
            with suppress(BrokerUnavailable):
                assert await ask() == NOT_COORDINATOR
            await old.ended.wait()
            producer.client = new.connection
            assert await producer.end(committed=True) == NONE


@pytest.mark.parametrize("durability", IN_BUCKET)
@pytest.mark.parametrize("asks_for", ["a partition", "a group's offsets", "its end"])
async def test_a_superseded_coordinator_does_not_take_a_former_transaction_for_its_successors(
    autojump_clock, bucket, durability, asks_for
):
    """Before KIP-890 they have the same epoch. It answered that all is done already: the commit came to nothing."""

    async def ask() -> int:
        if asks_for == "a partition":
            return (await producer.add(0))[0]
        if asks_for == "a group's offsets":
            return await producer.add_offsets("billing")
        return await producer.end(committed=True)

    own = FaultyStore(bucket)
    async with running(Machine(own, tokens=64), durability) as old:
        await old.create()
        producer = Producer(old.connection, produce_version=OLD)
        assert await producer.init() == NONE
        await producer.write(0, b"former")
        await producer.commit_offsets("billing", {0: 0})
        if asks_for == "its end":
            assert await producer.end(committed=True) == NONE
            await old.broker.services.log.flusher.flush_all()
        gate = own.hold(On())
        async with running(Machine(bucket, tokens=64), durability) as new:
            producer.client = new.connection
            if asks_for != "its end":
                assert await producer.end(committed=True) == NONE
            await producer.write(1, b"a")
            producer.client = old.connection
            with trio.move_on_after(1) as patience:
                await ask()
            assert patience.cancelled_caught  # it can't know
            gate.open()
            own.heal()
            with suppress(BrokerUnavailable):
                assert await ask() == NOT_COORDINATOR
            await old.ended.wait()
            producer.client = new.connection
            assert await ask() == NONE
            assert await ask() == NONE  # it has been done
            if asks_for == "a partition":
                assert await producer.send(0, b"b") == NONE
            assert await producer.end(committed=True) == NONE
            assert await committed_values(new.connection, 1) == [b"a"]


async def test_in_wal_repeated_transaction_requests_are_answered_without_the_bucket(autojump_clock, bucket):
    async with running(Machine(bucket, tokens=64), Durability.WAL) as broker:
        await broker.create()
        producer = Producer(broker.connection, produce_version=OLD)
        assert await producer.init() == NONE
        bucket.hold(On())
        await producer.write(0, b"a")
        assert await producer.add(0) == [NONE]
        for _ in range(2):
            assert await producer.end(committed=True) == NONE


@pytest.mark.parametrize("durability", MODES)
@pytest.mark.parametrize("sends", ["records", "offsets"])
async def test_a_superseded_broker_does_not_have_a_transaction_aborted_that_its_successor_has_begun(
    autojump_clock, bucket, durability, sends
):
    async def send() -> int:
        if sends == "records":
            return await producer.send(0, b"a")
        (error_code,) = await producer.send_offsets("billing", {0: 1}, version=4)
        return error_code

    own = FaultyStore(bucket)
    async with running(Machine(own, tokens=64), durability) as old:
        await old.create()
        producer = Producer(old.connection, produce_version=OLD)
        assert await producer.init() == NONE
        assert await producer.add_offsets("another") == NONE
        assert await producer.end(committed=True) == NONE
        await old.broker.services.log.flusher.flush_all()
        await trio.sleep(CHECKPOINT_SECONDS)
        gate = own.hold(On())
        async with running(Machine(bucket, tokens=64), durability) as new:
            producer.client = new.connection
            assert await producer.add(0) == [NONE]
            assert await producer.add_offsets("billing") == NONE
            producer.client = old.connection
            with trio.move_on_after(1) as patience:
                await send()
            assert patience.cancelled_caught  # it can't know
            gate.open()
            own.heal()
            with suppress(BrokerUnavailable):
                assert await send() in (NOT_COORDINATOR, NOT_LEADER_OR_FOLLOWER)
            await old.ended.wait()
            producer.client = new.connection
            assert await send() == NONE
            assert await producer.end(committed=True) == NONE


@pytest.mark.parametrize("durability", IN_BUCKET)
@pytest.mark.parametrize("version", [7, 8])  # of one group, and of several
async def test_a_superseded_coordinator_returns_no_stale_stable_offsets(autojump_clock, bucket, durability, version):
    """It told offsets that its successor had gone on from: what came after was read, and committed, a second time."""
    own = FaultyStore(bucket)
    async with running(Machine(own, tokens=64), durability) as old:
        await old.create()
        producer = Producer(old.connection)
        assert await producer.init() == NONE
        await producer.commit_offsets("billing", {0: 1})
        assert await producer.end(committed=True) == NONE
        assert await stable_offset(old.connection, version) == 1
        gate = own.hold(On())
        async with running(Machine(bucket, tokens=64), durability) as new:
            producer.client = new.connection
            await producer.commit_offsets("billing", {0: 2})
            assert await producer.end(committed=True) == NONE
            with trio.move_on_after(1) as patience:
                await stable_offset(old.connection, version)
            assert patience.cancelled_caught  # it can't know
            gate.open()
            own.heal()
            with suppress(BrokerUnavailable):
                with pytest.raises(KafkaError) as refused:
                    await stable_offset(old.connection, version)
                assert refused.value.code == NOT_COORDINATOR
            await old.ended.wait()
            assert await stable_offset(new.connection, version) == 2


@pytest.mark.parametrize("durability", IN_BUCKET)
async def test_a_superseded_coordinator_does_not_say_that_an_offset_is_gone_that_its_successor_has(
    autojump_clock, bucket, durability
):
    async def delete(client: Connection) -> int:
        partitions = [OffsetDeleteRequestPartition(partition_index=0)]
        topics = [OffsetDeleteRequestTopic(name=TOPIC, partitions=partitions)]
        request = OffsetDeleteRequest(group_id="billing", topics=topics)
        return (await client.request(request, OffsetDeleteResponse)).error_code

    own = FaultyStore(bucket)
    async with running(Machine(own, tokens=64), durability) as old:
        await old.create()
        assert await old.commit(1, partition=1) == NONE
        gate = own.hold(On())
        async with running(Machine(bucket, tokens=64), durability) as new:
            assert await new.commit(5) == NONE
            with trio.move_on_after(1) as patience:
                await delete(old.connection)
            assert patience.cancelled_caught  # it can't know
            gate.open()
            own.heal()
            with suppress(BrokerUnavailable):
                assert await delete(old.connection) == NOT_COORDINATOR
            await old.ended.wait()
            assert new.committed() == {0: 5, 1: 1}
            assert await delete(new.connection) == NONE
            assert new.committed() == {1: 1}


@pytest.mark.parametrize("durability", MODES)
@pytest.mark.parametrize("request_of", ["heartbeat", "commit", "join", "sync", "leave", "consumer", "new consumer"])
async def test_a_superseded_coordinator_does_not_fence_a_static_member_of_its_successor(
    autojump_clock, bucket, durability, request_of
):
    """It told a member that somebody else has its place, who had it before: FENCED_INSTANCE_ID ends a client."""
    is_classic = "consumer" not in request_of
    own = FaultyStore(bucket)
    async with running(Machine(own, tokens=64), durability) as old:
        await old.create()
        former = StaticMember(old.connection, is_classic=is_classic)
        assert await former.join() == NONE
        await old.broker.services.log.flusher.flush_all()
        await trio.sleep(CHECKPOINT_SECONDS)
        gate = own.hold(On())
        async with running(Machine(bucket, tokens=64), durability) as new:
            member = StaticMember(new.connection, is_classic=is_classic)
            former.client = new.connection
            if not is_classic:
                assert await former.leave_for_a_while() == NONE
            assert await member.join() == NONE
            member.client = old.connection
            with trio.move_on_after(1) as patience:
                await member.ask(request_of)
            assert patience.cancelled_caught  # it can't know
            gate.open()
            own.heal()
            with suppress(BrokerUnavailable):
                assert await member.ask(request_of) == NOT_COORDINATOR
            await old.ended.wait()
            member.client = new.connection
            assert await member.ask(request_of) == NONE


@pytest.mark.parametrize("durability", IN_BUCKET)
async def test_a_static_member_with_an_unanswered_join_joins_at_the_next_broker(autojump_clock, bucket, durability):
    """Its instance id was in use, by itself: it ended, and what it was to have was not read until its session's end."""
    own = FaultyStore(bucket)
    async with running(Machine(own, tokens=64), durability) as old:
        await old.create()
        former = StaticMember(old.connection, is_classic=False)
        assert await former.join() == NONE
        assert await former.leave_for_a_while() == NONE
        lost = own.hold(On("put*"), after_effect=True)  # the store takes what it is told, and does not answer
        member = StaticMember(old.connection, is_classic=False, member_id="member")
        with trio.move_on_after(1):
            await member.join()
        await lost.wait_arrived()
        await old.crash()
        async with running(Machine(bucket, tokens=64), durability) as new:
            member.client = new.connection
            assert await member.join() == NONE


async def test_in_wal_stable_offsets_are_fetched_without_the_bucket(autojump_clock, bucket):
    async with running(Machine(bucket, tokens=64), Durability.WAL) as broker:
        await broker.create()
        bucket.hold(On())
        assert await broker.commit(1) == NONE
        assert await stable_offset(broker.connection) == 1


async def test_a_producers_gap_is_out_of_order_without_a_takeover(autojump_clock, bucket):
    async with running(Machine(bucket), Durability.S3_WAL) as broker:
        await broker.create()
        stamp = ProducerStamp(await broker.producer_id(), 0, 0)
        await broker.produce(b"a", stamp=stamp)
        with pytest.raises(BrokerUnavailable, match=f"error {OUT_OF_ORDER_SEQUENCE_NUMBER}"):
            await broker.produce(b"c", stamp=attrs.evolve(stamp, base_sequence=2))


@pytest.mark.parametrize("durability", MODES)
async def test_nothing_that_either_of_two_brokers_acknowledged_is_lost(autojump_clock, bucket, durability):
    bucket.delay(On("put*"), 0.0, jitter_seconds=0.05)
    bucket.delay(On("put*"), 0.0, jitter_seconds=0.05, after_effect=True)
    acknowledged: dict[int, bytes] = {}

    async def produce(broker: Running, name: bytes) -> None:
        with suppress(BrokerUnavailable, KafScaleError, trio.BrokenResourceError, trio.ClosedResourceError):
            for number in range(1000):
                value = b"%s %d" % (name, number)
                offset = await broker.produce(value)
                assert offset not in acknowledged, "acknowledged twice"
                acknowledged[offset] = value

    machine = Machine(bucket)
    other = machine if durability is Durability.WAL else Machine(bucket)
    async with running(machine, durability, flush_interval_seconds=0.2) as old:
        await old.create()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce, old, b"old")
            await trio.sleep(1)
            if durability is Durability.WAL:
                await old.crash()
            async with running(other, durability, flush_interval_seconds=0.2) as new:
                nursery.start_soon(produce, new, b"new")
                await trio.sleep(20)
                assert old.ended.is_set()
                nursery.cancel_scope.cancel()
                await wait_all_tasks_blocked()
    assert {value[:3] for value in acknowledged.values()} == {b"old", b"new"}
    async with running(other, durability) as last:
        found = await last.values()
        assert {offset: found[offset] for offset in acknowledged} == acknowledged


async def test_with_wal_an_older_broker_notices_and_the_newer_waits_for_that(autojump_clock, bucket, caplog):
    async with running(Machine(bucket), Durability.WAL) as old:
        await old.create()
        await old.produce(b"a")
        began = trio.current_time()
        async with running(Machine(bucket), Durability.WAL):
            assert trio.current_time() - began == pytest.approx(3.0)
            assert old.ended.is_set()
            assert isinstance(leaf(old.ended_by[0]), Fenced)
    assert "waiting 3 s" in caplog.text


async def test_with_wal_a_start_with_the_same_directory_does_not_wait(autojump_clock, bucket):
    machine = Machine(bucket)
    async with running(machine, Durability.WAL) as old:
        await old.crash()
    began = trio.current_time()
    async with running(machine, Durability.WAL):
        assert trio.current_time() == began


async def test_in_wal_records_only_in_an_older_log_are_kept_unless_offsets_are_taken(autojump_clock, bucket, caplog):
    first = Machine(bucket)
    async with running(first, Durability.WAL) as old:
        await old.create()
        await old.produce(b"both")
        await old.broker.services.log.flusher.flush_all()
        await trio.sleep(30)
        await old.produce(b"old 1")
        await old.produce(b"old 2")
        await old.produce(b"nobody else wrote here", partition=1)
        await old.crash()
    async with running(Machine(bucket), Durability.WAL) as new:
        assert await new.produce(b"new 1") == 1
        new.broker.stop()
        await new.ended.wait()
    async with running(first, Durability.WAL) as again:
        assert await again.values() == [b"both", b"new 1"]
        assert await again.values(1) == [b"nobody else wrote here"]
        assert again.broker.services.log.kept.superseded.total() == 2
        assert "2 record batches that were acknowledged here are not in the log" in caplog.text
        kept = [name for name in first.disk.files if name.startswith("superseded-")]
        assert len(kept) == 1
        assert b"old 1" in first.disk.files[kept[0]]
        assert b"old 2" in first.disk.files[kept[0]]
        assert await again.produce(b"new 2") == 2
        again.broker.stop()
        await again.ended.wait()
    async with running(first, Durability.WAL) as last:
        assert await last.values() == [b"both", b"new 1", b"new 2"]
        assert last.broker.services.log.kept.superseded.total() == 0
        assert set(kept) < set(first.disk.files)


@pytest.mark.parametrize(
    ("before", "after"), [(before, after) for before in MODES for after in MODES if before is not after]
)
async def test_another_durability_after_an_orderly_stop_keeps_everything(autojump_clock, bucket, before, after):
    machine = Machine(bucket)
    async with running(machine, before) as first:
        await first.create()
        await first.produce(b"a")
        assert await first.commit(1) == NONE
        first.broker.stop()
        await first.ended.wait()
    async with running(machine, after) as second:
        assert await second.values() == [b"a"]
        assert second.committed() == {0: 1}
        await second.produce(b"b")
        assert await second.commit(2) == NONE
        second.broker.stop()
        await second.ended.wait()
    async with running(Machine(bucket), before) as third:
        assert await third.values() == [b"a", b"b"]
        assert third.committed() == {0: 2}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Durability.WAL, Durability.S3_WAL),
        (Durability.WAL, Durability.SEGMENT),
        (Durability.S3_WAL, Durability.WAL),
        (Durability.S3_WAL, Durability.SEGMENT),
    ],
)
async def test_a_change_of_durability_after_a_crash_is_refused_if_records_would_be_lost(
    autojump_clock, bucket, before, after
):
    machine = Machine(bucket)
    async with running(machine, before) as first:
        await first.create()
        await first.produce(b"a")
        await first.crash()
    with pytest.raises(ExceptionGroup) as caught:
        await Broker(memory_settings(durability=after)).run_on(machine.parts())
    refusal = leaf(caught.value)
    assert isinstance(refusal, StartupError)
    assert f"start once with --durability {before}" in str(refusal)
    async with running(machine, before) as again:
        assert await again.values() == [b"a"]


async def test_with_s3_wal_produces_wait_out_an_outage_and_consumers_see_nothing_early(autojump_clock, bucket):
    async with running(Machine(bucket), Durability.S3_WAL) as broker:
        await broker.create()
        await broker.produce(b"a")
        bucket.fail(On("put*"), StoreUnavailable)
        done: list[int] = []

        async def produce() -> None:
            done.append(await broker.produce(b"b"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            await trio.sleep(20)
            partition = broker.broker.services.log.partition_named(TOPIC, 0)
            assert (done, partition.high_watermark, partition.next_offset) == ([], 1, 2)
            bucket.heal()
        assert done == [1]
        assert await broker.values() == [b"a", b"b"]


async def test_with_s3_wal_flushed_objects_of_the_log_go_away(autojump_clock, bucket):
    async with running(Machine(bucket), Durability.S3_WAL, flush_interval_seconds=1.0) as broker:
        await broker.create()
        for number in range(50):
            await broker.produce(b"%d" % number)
            await trio.sleep(0.1)
        await trio.sleep(60)
        found = [info.key async for page in bucket.list("_kafscale/default/wal/") for info in page]
        assert len(found) == 1
        await broker.crash()
    async with running(Machine(bucket), Durability.S3_WAL) as again:
        assert len(await again.values()) == 50


@pytest.mark.parametrize("partition_count", [1, 100, 1000])
async def test_with_s3_wal_puts_do_not_depend_on_the_number_of_partitions(autojump_clock, bucket, partition_count):
    bucket.delay(On("put_if_absent"), 0.05)
    machine = Machine(bucket, tokens=64)
    async with running(machine, Durability.S3_WAL, chunk_pool_bytes=32 << 20) as broker:
        await broker.create(partition_count=partition_count)
        before = bucket.count("put*", "*/wal/*")
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(
                    lambda number=number: broker.connection.send(_request(number % partition_count), ProduceResponse)
                )
                await trio.sleep(0.001)
        await trio.sleep(1)
        assert bucket.count("put*", "*/wal/*") - before in (20, 21)


def _request(partition: int) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=memoryview(build_batch([Record(value=b"x")])))
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])])
