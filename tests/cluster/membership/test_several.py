"""Several whole brokers on one bucket, each with a disk and metadata of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.broker import Broker
from kafscale.broker_storage import StorageParts
from kafscale.buffers import Buffer
from kafscale.cli.verify import _learn_topics
from kafscale.cluster.membership.start.claim import claim_key, decode_claim
from kafscale.cluster.membership.start.own_objects import OwnObjects
from kafscale.cluster.membership.start.recovery import preview
from kafscale.cluster.registries.topics import NewTopic, Topic
from kafscale.config import Durability, Listener
from kafscale.errors import Fenced, KafkaError, KafScaleError, NotFound, StartupError
from kafscale.log.check.verification import Verifier
from kafscale.log.repair.verify_segment import FindingKind
from kafscale.store.base import ForwardingStore, ObjectPart, ObjectStore
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.batch_header import batches
from kafscale.wire.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
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
from kafscale.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from kafscale.wire.messages.topics import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kafscale.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from kafscale.wire.records import ProducerStamp, Record, build_batch, iterate_records
from tests.devtools.fakes.broker_network import BrokerNetwork, RunningBroker, network_of
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_settings
from tests.devtools.fakes.transactional_producer import Producer, committed_values

TOPIC = "orders"
SOON_SECONDS = 60.0  # some are waited for half a minute to tell their load
MODES = list(Durability)


@attrs.define(eq=False)
class Machine:
    """What outlasts a broker: its disk and its metadata; the bucket is everybody's."""

    bucket: ObjectStore
    broker_id: int
    disk: MemoryDisk = attrs.field(factory=MemoryDisk)
    metadata: MemoryMetadataStore = attrs.field(factory=MemoryMetadataStore)
    network: BrokerNetwork = attrs.field(
        default=attrs.Factory(lambda self: network_of(self.bucket), takes_self=True), kw_only=True
    )

    def parts(self) -> StorageParts:
        return StorageParts(store=self.bucket, metadata=self.metadata, disk=self.disk)

    @asynccontextmanager
    async def run(self, durability: Durability = Durability.WAL, **changes: object) -> AsyncIterator[RunningBroker]:
        wanted = {"several_brokers": True, "broker_id": self.broker_id, "durability": durability, **changes}
        async with self.network.broker(self.parts(), memory_settings(**wanted)) as running:
            yield running


def machines(count: int) -> list[Machine]:
    bucket = MemoryStore()
    return [Machine(bucket, broker_id) for broker_id in range(1, count + 1)]


async def create(broker: Broker, partition_count: int, name: str = TOPIC) -> Topic:
    (topic,) = await broker.services.topics.create([NewTopic(name=name, partition_count=partition_count)])
    assert isinstance(topic, Topic)
    return topic


async def topic_at(broker: Broker) -> Topic:
    while (topic := broker.services.topics.get(TOPIC)) is None:
        await trio.sleep(0.1)
    return topic


def led_by(broker: Broker) -> list[int]:
    return [index for index, each in enumerate(broker.services.log.by_name.get(TOPIC, [])) if each is not None]


async def produce(running: MemoryBroker, index: int, value: bytes, stamp: ProducerStamp | None = None) -> int:
    """Produce one record; the error code."""
    client = await running.connect()
    batch = build_batch([Record(value=value, timestamp_ms=1_000)], producer=stamp or ProducerStamp())
    data = PartitionProduceData(index=index, records=memoryview(batch))
    request = ProduceRequest(
        acks=-1, timeout_ms=1_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])]
    )
    (answer,) = (await client.request(request, ProduceResponse)).responses[0].partition_responses
    return answer.error_code


async def move(at: MemoryBroker, indexes: Sequence[int], broker_id: int) -> None:
    """Have a broker lead partitions; returns when that is known to be wanted."""
    wanted = [ReassignablePartition(partition_index=index, replicas=[broker_id]) for index in indexes]
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=1_000, topics=[ReassignableTopic(name=TOPIC, partitions=wanted)]
    )
    client = await at.connect()
    answer = await client.request(request, AlterPartitionReassignmentsResponse)
    assert {each.error_code for each in answer.responses[0].partitions} == {error_codes.NONE}


async def values(running: MemoryBroker, index: int) -> list[bytes | None]:
    client = await running.connect()
    topic = await topic_at(running.broker)
    found: list[bytes | None] = []
    while True:
        wanted = FetchPartition(partition=index, fetch_offset=len(found), partition_max_bytes=1 << 20)
        fetched = FetchTopic(topic=TOPIC, topic_id=topic.topic_id, partitions=[wanted])
        request = FetchRequest(max_wait_ms=10, min_bytes=1, topics=[fetched])
        (answer,) = (await client.request(request, FetchResponse)).responses[0].partitions
        assert answer.error_code == error_codes.NONE, error_codes.name(answer.error_code)
        if not answer.records:
            return found
        found += [each.value for batch in batches(memoryview(answer.records)) for each in iterate_records(batch)]


async def until(condition: object) -> None:
    """Wait until a function returns something true."""
    assert callable(condition)
    with trio.fail_after(SOON_SECONDS):
        while not condition():
            await trio.sleep(0.05)


@pytest.mark.parametrize("durability", MODES)
async def test_each_broker_leads_a_share_and_names_the_leaders_of_the_rest(
    autojump_clock: MockClock, durability: Durability
) -> None:
    one, two, three = machines(3)
    async with one.run(durability) as a, two.run(durability) as b, three.run(durability) as c:
        running = {1: a, 2: b, 3: c}
        topic = await create(b.broker, 6)
        for each in running.values():
            await topic_at(each.broker)
        await until(lambda: [len(led_by(each.broker)) for each in running.values()] == [2, 2, 2])
        for index in range(6):
            leaders = {each.broker.services.assignment.leader(topic, index) for each in running.values()}
            (leader,) = leaders
            assert leader is not None
            for broker_id, each in running.items():
                error_code = await produce(each, index, b"%d" % index)
                is_leader = broker_id == leader.node_id
                assert error_code == (error_codes.NONE if is_leader else error_codes.NOT_LEADER_OR_FOLLOWER)
            assert await values(running[leader.node_id], index) == [b"%d" % index]
        controllers = {each.broker.services.assignment.controller_id for each in running.values()}
        assert len(controllers) == 1
        assert {node.node_id for node in a.broker.services.assignment.brokers()} == {1, 2, 3}


async def test_a_returning_broker_leads_its_former_partitions(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    async with one.run() as a:
        async with two.run(shutdown_timeout_seconds=0.0) as b:  # no time to hand over
            await create(a.broker, 4)
            await until(lambda: len(led_by(b.broker)) == 2)
            (first, second) = led_by(b.broker)
            assert await produce(b, first, b"x") == error_codes.NONE
        await until(lambda: [node.node_id for node in a.broker.services.assignment.brokers()] == [1])
        topic = await topic_at(a.broker)
        assert a.broker.services.assignment.leader(topic, first) is None
        async with two.run() as b:
            assert led_by(b.broker) == [first, second]
            assert not [page async for page in one.bucket.list("_kafscale/default/manifests/")]  # placements tell that
            assert await values(b, first) == [b"x"]
            assert await produce(b, first, b"y") == error_codes.NONE
            assert await values(b, first) == [b"x", b"y"]


async def test_a_crash_loses_nothing_that_was_acknowledged(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    async with one.run() as a:
        async with two.run(flush_interval_seconds=3600.0) as b:
            await create(a.broker, 2)
            await until(lambda: len(led_by(b.broker)) == 1)
            (index,) = led_by(b.broker)
            assert [await produce(b, index, b"%d" % each) for each in range(10)] == [error_codes.NONE] * 10
            b.kill()
            await b.ended.wait()
        two.disk.crash()
        async with two.run() as b:
            assert await values(b, index) == [b"%d" % each for each in range(10)]


@pytest.mark.parametrize("durability", MODES)
async def test_partitions_move_to_a_broker_that_joins_with_all_that_they_have(
    autojump_clock: MockClock, durability: Durability
) -> None:
    one, two = machines(2)
    async with one.run(durability) as a:
        await create(a.broker, 8)
        for index in range(8):
            assert await produce(a, index, b"%d" % index) == error_codes.NONE
        async with two.run(durability) as b:
            await until(lambda: (len(led_by(a.broker)), len(led_by(b.broker))) == (4, 4))
            assert sorted(led_by(a.broker) + led_by(b.broker)) == list(range(8))
            for running in (a, b):
                for index in led_by(running.broker):
                    assert await produce(running, index, b"more") == error_codes.NONE
                    assert await values(running, index) == [b"%d" % index, b"more"]


async def test_a_producer_id_of_one_broker_is_accepted_by_others_at_once(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    async with one.run() as a, two.run() as b:
        await create(a.broker, 2)
        await until(lambda: len(led_by(b.broker)) == 1)
        for giver in (a, b):
            client = await giver.connect()
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            producer_id = (await client.request(request, InitProducerIdResponse)).producer_id
            for running in (a, b):
                (index,) = led_by(running.broker)
                assert await produce(running, index, b"", ProducerStamp(producer_id, 0, 0)) == error_codes.NONE


@pytest.mark.parametrize("durability", MODES)
async def test_a_broker_alone_becomes_the_first_of_several(autojump_clock: MockClock, durability: Durability) -> None:
    one, two = machines(2)
    async with one.run(durability, several_brokers=False) as a:
        await create(a.broker, 4)
        for index in range(4):
            assert await produce(a, index, b"before") == error_codes.NONE
    async with one.run(durability) as a:
        for index in range(4):
            assert await values(a, index) == [b"before"]
        async with two.run(several_brokers=False) as b:  # a bucket that is shared once stays so
            await until(lambda: len(led_by(b.broker)) == 2)
            for index in led_by(b.broker):
                assert await values(b, index) == [b"before"]


async def test_only_the_directory_that_was_in_use_makes_several_of_one(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    async with one.run(several_brokers=False) as a:
        await create(a.broker, 1)
    with pytest.raises(StartupError, match="start that one first"):
        await Broker(memory_settings(several_brokers=True, broker_id=2)).run_on(two.parts())
    async with one.run() as a, two.run():
        assert (await topic_at(a.broker)).name == TOPIC


async def test_where_that_directory_is_lost_another_one_is_started_alone_before(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    async with one.run(several_brokers=False) as a:
        await create(a.broker, 1)
    async with two.run(several_brokers=False):
        pass
    async with two.run() as b:
        assert (await topic_at(b.broker)).name == TOPIC


async def test_a_broker_started_again_on_another_machine_is_superseded(autojump_clock: MockClock) -> None:
    bucket = MemoryStore()
    ended: list[KafScaleError] = []

    async def run_first(*, task_status: trio.TaskStatus[None]) -> None:
        try:
            await Broker(memory_settings(several_brokers=True, broker_id=1)).run_on(
                Machine(bucket, 1).parts(), task_status=task_status
            )
        except* Fenced as group:
            ended.extend(each for each in group.exceptions if isinstance(each, Fenced))

    async with trio.open_nursery() as nursery:
        await nursery.start(run_first)
        async with Machine(bucket, 1).run():
            assert trio.current_time() >= 3.0  # until the first one has noticed
            nursery.cancel_scope.deadline = trio.current_time() + SOON_SECONDS
    assert not nursery.cancel_scope.cancelled_caught


async def test_old_versions_neither_run_nor_start_on_a_bucket_of_several(autojump_clock: MockClock) -> None:
    (one,) = machines(1)
    async with one.run():
        key = claim_key("default")
        claim = decode_claim(key, (await one.bucket.get(key)).data)
        assert claim.epoch > 2**31 - 1


async def test_a_topic_is_deleted_everywhere_and_its_objects_go(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    changes = {"flush_interval_seconds": 0.5, "segment_delete_delay_ms": 10_000}
    async with one.run(**changes) as a, two.run(**changes) as b:
        await create(a.broker, 4)
        await until(lambda: len(led_by(b.broker)) == 2)
        for running in (a, b):
            for index in led_by(running.broker):
                assert await produce(running, index, b"x") == error_codes.NONE
        await trio.sleep(5.0)
        assert await keys_of(one.bucket)
        await b.broker.services.topics.delete([TOPIC])
        await until(lambda: a.broker.services.topics.get(TOPIC) is None and not led_by(a.broker))
        await trio.sleep(200.0)
        assert not await keys_of(one.bucket)
        assert not a.broker.services.assignment.state.placements  # type: ignore[attr-defined]


async def keys_of(bucket: ObjectStore) -> list[str]:
    return [info.key async for page in bucket.list(f"default/{TOPIC}/") for info in page]


async def test_a_topic_created_by_another_broker_is_visible_at_once(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    async with one.run() as a, two.run() as b:
        await create(a.broker, 2)
        client = await b.connect()
        request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False)
        (topic,) = (await client.request(request, MetadataResponse)).topics
        assert topic.error_code == error_codes.NONE
        assert sorted(each.leader_id for each in topic.partitions) == [1, 2]


async def test_a_requested_move_changes_the_leader(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    async with one.run() as a, two.run() as b:
        topic = await create(a.broker, 2)
        await until(lambda: len(led_by(b.broker)) == 1)
        (index,) = led_by(a.broker)
        assert await produce(a, index, b"x") == error_codes.NONE
        await move(b, [index], 2)
        await until(lambda: index in led_by(b.broker))
        assert await values(b, index) == [b"x"]
        assert b.broker.services.assignment.leader(topic, index).node_id == 2  # type: ignore[union-attr]


async def test_brokers_that_are_started_at_once_the_first_time_all_serve(autojump_clock: MockClock) -> None:
    stopping, serving = trio.Event(), []

    async def run(machine: Machine) -> None:
        async with machine.run(Durability.SEGMENT) as running:
            serving.append(running)
            await stopping.wait()

    async with trio.open_nursery() as nursery:
        for machine in machines(3):
            nursery.start_soon(run, machine)
        await until(lambda: len(serving) == 3)
        for each in serving:
            await each.broker.services.catch_up()
            assert [node.node_id for node in each.broker.services.assignment.brokers()] == [1, 2, 3]
        stopping.set()


async def test_a_first_broker_that_finds_a_concurrent_claim_late_is_not_refused(
    autojump_clock: MockClock,
) -> None:
    first, second = machines(2)
    looked, claimed = trio.Event(), trio.Event()

    class LooksEarly(ForwardingStore):
        """The second broker's store: it finds no claim, and is slow to go on."""

        async def get(self, key: str) -> ObjectPart:
            try:
                return await super().get(key)
            except NotFound:
                if key == claim_key("default") and not looked.is_set():
                    looked.set()
                    await claimed.wait()
                raise

    second = attrs.evolve(second, bucket=LooksEarly(second.bucket), network=first.network)

    async def run_first() -> None:
        await looked.wait()
        async with first.run():
            await trio.sleep_forever()

    async def tell_claimed() -> None:
        while not [each async for each in first.bucket.list(claim_key("default"))]:
            await trio.sleep(0)
        claimed.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_first)
        nursery.start_soon(tell_claimed)
        async with second.run() as running:
            await until(lambda: len(running.broker.services.assignment.brokers()) == 2)
        nursery.cancel_scope.cancel()


async def test_two_that_write_the_first_checkpoint_of_several_at_once_both_serve(autojump_clock: MockClock) -> None:
    overtaken = []

    class IsOvertaken(ForwardingStore):
        """Another broker was faster, the first time."""

        async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
            if "/checkpoint/" in key and not overtaken:
                overtaken.append(await super().put_if_absent(key, parts))
            return await super().put_if_absent(key, parts)

    (machine,) = machines(1)
    machine = attrs.evolve(machine, bucket=IsOvertaken(machine.bucket), network=machine.network)
    async with machine.run(Durability.SEGMENT) as running:
        assert overtaken
        assert [node.node_id for node in running.broker.services.assignment.brokers()] == [1]


async def test_an_open_transaction_survives_the_switch_to_several_brokers(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    one.broker_id, two.broker_id = 0, 1
    async with one.run(several_brokers=False) as a:
        await create(a.broker, 8)
        producer = Producer(await a.connect())
        assert await producer.init() == error_codes.NONE
        await producer.write(3, b"x")
        assert await producer.end(committed=True) == error_codes.NONE
        await producer.write(4, b"y")
    async with one.run() as a, two.run() as b:
        await until(lambda: 4 in led_by(b.broker))
        await until(lambda: len(led_by(a.broker)) + len(led_by(b.broker)) == 8)
        producer.client = await a.connect()
        await producer.write(led_by(a.broker)[0], b"z")
        assert await producer.end(committed=True) == error_codes.NONE
        partition = b.broker.services.log.partition_named(TOPIC, 4)
        assert partition is not None
        await until(lambda: not partition.transactions.open)
        assert await committed_values(await b.connect(), 4) == [b"y"]


async def test_commands_see_commits_made_after_the_last_checkpoint(autojump_clock: MockClock) -> None:
    (one,) = machines(1)
    async with one.run() as a:
        await trio.sleep(30.0)
        await create(a.broker, 1)
        seen = MemoryMetadataStore()
        await preview(one.bucket, "default", seen)
        assert await seen.get(f"topics/{TOPIC}") is not None
        own = OwnObjects(store=one.bucket, namespace="default")
        await own.read()
        await own.check_claim(0)
        assert not own.findings
        await one.bucket.put(claim_key("default"), [b"damaged"])
        await own.check_claim(0)
        assert [(each.damage, each.can_repair) for each in own.findings] == [(True, False)]


async def test_a_wildcard_listener_without_advertised_address_is_refused(autojump_clock: MockClock) -> None:
    (one,) = machines(1)
    everywhere = (Listener("PLAINTEXT", "0.0.0.0", 9092),)
    with pytest.raises(StartupError, match="--advertised-listener PLAINTEXT=HOST:PORT"):
        await Broker(memory_settings(several_brokers=True, listeners=everywhere)).run_on(one.parts())


async def produce_in_vain(running: MemoryBroker) -> None:
    with suppress(KafScaleError):
        assert await produce(running, 0, b"late") != error_codes.NONE


async def late_by_verify(bucket: ObjectStore) -> int:
    """Count the objects that `kafscale verify` finds to be late, where nothing else is wrong."""
    verifier = Verifier(store=bucket, namespace="default")
    await verifier.list_bucket()
    await _learn_topics(verifier, memory_settings(), with_data_dir=False)
    await verifier.read_bucket(lambda _: None)
    assert {each.kind for each in verifier.report.findings} <= {FindingKind.LATE}
    return len(verifier.report.findings)


async def test_a_late_upload_of_a_superseded_broker_is_not_read(autojump_clock: MockClock) -> None:
    bucket = MemoryStore()
    late = FaultyStore(bucket)
    gate = late.hold(On("put*", "*.kfs"))
    settings = memory_settings(several_brokers=True, broker_id=1, durability=Durability.SEGMENT)

    async def run_first(*, task_status: trio.TaskStatus[Broker]) -> None:
        try:
            await Broker(settings).run_on(Machine(late, 1).parts(), task_status=task_status)
        except* Fenced:
            pass

    async with trio.open_nursery() as nursery, trio.open_nursery() as clients:
        first = MemoryBroker(await nursery.start(run_first), clients)
        await create(first.broker, 1)
        clients.start_soon(produce_in_vain, first)
        await gate.wait_arrived()
        second = Machine(bucket, 1)
        async with second.run(Durability.SEGMENT) as running:
            assert await values(running, 0) == []
            gate.open()
            with trio.fail_after(SOON_SECONDS):
                while not any(key.endswith(".kfs") for key in await keys_of(bucket)):
                    await trio.sleep(0.05)
            assert await late_by_verify(bucket) == 1
        async with second.run(Durability.SEGMENT) as running:
            assert await values(running, 0) == []
            assert await produce(running, 0, b"new") == error_codes.NONE
            assert await values(running, 0) == [b"new"]
        clients.cancel_scope.cancel()


async def test_a_group_is_coordinated_by_the_leader_of_its_offsets_partition(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    async with one.run() as a, two.run() as b:
        await create(a.broker, 1, "__consumer_offsets_not")
        (topic,) = await a.broker.services.topics.create([NewTopic(name="__consumer_offsets", partition_count=4)])
        assert isinstance(topic, Topic)
        await until(lambda: b.broker.services.topics.get("__consumer_offsets") is not None)
        coordinators = Counter(
            node.node_id
            for group in map(str, range(40))
            if (node := b.broker.services.assignment.coordinator(group)) is not None
        )
        assert set(coordinators) == {1, 2}


async def test_a_broker_unable_to_confirm_leadership_answers_not_leader_past_the_end(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with Machine(store, 1).run(Durability.SEGMENT) as a:
        topic = await create(a.broker, 1)

        async def code_behind_the_end() -> int:
            client = await a.connect()
            wanted = FetchPartition(partition=0, fetch_offset=100, partition_max_bytes=1 << 20)
            fetched = FetchTopic(topic=TOPIC, topic_id=topic.topic_id, partitions=[wanted])
            request = FetchRequest(max_wait_ms=10, min_bytes=1, topics=[fetched])
            (answer,) = (await client.request(request, FetchResponse)).responses[0].partitions
            return answer.error_code

        assert await code_behind_the_end() == error_codes.OFFSET_OUT_OF_RANGE
        store.fail(On("head"))
        await trio.sleep(2.0)
        assert await code_behind_the_end() == error_codes.NOT_LEADER_OR_FOLLOWER
        store.heal()
        await trio.sleep(2.0)
        assert await code_behind_the_end() == error_codes.OFFSET_OUT_OF_RANGE


async def test_a_broker_unable_to_confirm_leadership_answers_no_group_offsets(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with Machine(store, 1).run(Durability.SEGMENT) as a:
        await create(a.broker, 1)
        client = await a.connect()
        found = FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])
        await client.request(found, FindCoordinatorResponse)

        async def code() -> int:
            asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
            return (await client.request(asked, OffsetFetchResponse)).groups[0].error_code

        with trio.fail_after(SOON_SECONDS):
            while await code() != error_codes.NONE:
                await trio.sleep(0.1)
        store.fail(On("head"))
        await trio.sleep(2.0)
        assert await code() == error_codes.NOT_COORDINATOR
        store.heal()
        assert await code() == error_codes.NONE


async def test_a_bucket_that_fails_in_the_middle_of_balance_ends_no_controller(autojump_clock: MockClock) -> None:
    one, two = machines(2)
    failing = one.bucket = FaultyStore(one.bucket)
    async with one.run() as a:
        await create(a.broker, 4)
        await until(lambda: a.broker.services.assignment.controller_id == 1)
        async with two.run() as b:
            rule = failing.fail(On("put_if_match", "*/head"))
            await trio.sleep(60.0)
            assert rule.met_count
            assert a.failure is None
            failing.rules.remove(rule)
            await until(lambda: len(led_by(a.broker)) == len(led_by(b.broker)) == 2)


async def test_a_topic_that_others_create_while_a_broker_starts_is_led_there_too(autojump_clock: MockClock) -> None:
    bucket = FaultyStore(MemoryStore())
    one, two = (Machine(bucket, broker_id) for broker_id in (1, 2))
    async with one.run() as a, trio.open_nursery() as nursery:
        gate = bucket.hold(On("list", "default/*"))
        led: list[int] = []

        async def start() -> None:
            async with two.run() as b:
                await until(lambda: led_by(b.broker))
                led.extend(led_by(b.broker))

        nursery.start_soon(start)
        await gate.wait_arrived()
        await create(a.broker, 6)
        await trio.sleep(1.0)
        gate.open()
        await until(lambda: led)


async def test_a_topic_that_others_delete_while_a_broker_starts_does_not_end_that_start(
    autojump_clock: MockClock,
) -> None:
    bucket = FaultyStore(MemoryStore())
    one, two = (Machine(bucket, broker_id) for broker_id in (1, 2))
    async with one.run() as a, trio.open_nursery() as nursery:
        async with two.run(shutdown_timeout_seconds=0.0) as b:  # no time to hand over
            await create(a.broker, 4)
            await until(lambda: len(led_by(b.broker)) == 2)
        await until(lambda: len(a.broker.services.assignment.brokers()) == 1)
        gate = bucket.hold(On("list", "default/*"))
        has_started = trio.Event()

        async def start() -> None:
            async with two.run() as b:
                await until(
                    lambda: b.broker.services.topics.get(TOPIC) is None and not b.broker.services.log.partitions
                )
                has_started.set()

        nursery.start_soon(start)
        await gate.wait_arrived()
        await a.broker.services.topics.delete([TOPIC])
        gate.open()
        with trio.fail_after(SOON_SECONDS):
            await has_started.wait()


async def test_objects_of_a_topic_deleted_during_a_start_are_not_damage(autojump_clock: MockClock) -> None:
    """Its log goes on behind segments that have been deleted with the topic since it has read the metadata."""
    bucket = FaultyStore(MemoryStore())
    one, two = (Machine(bucket, broker_id) for broker_id in (1, 2))

    async def die(running: RunningBroker) -> None:
        running.kill()
        await running.ended.wait()
        two.disk.crash()

    async with one.run() as a, trio.open_nursery() as nursery:
        async with two.run(flush_interval_seconds=0.05) as b:
            topic = await create(a.broker, 2)
            await until(lambda: len(led_by(b.broker)) == 1)
            (index,) = led_by(b.broker)
            assert await produce(b, index, b"flushed") == error_codes.NONE
            await until(lambda: b.broker.services.log.partitions[topic.topic_id, index].flushed_offset == 1)
            await die(b)
        async with two.run(flush_interval_seconds=3600.0) as b:
            assert await produce(b, index, b"logged") == error_codes.NONE
            await die(b)
        objects = [key for key in await keys_of(bucket) if TOPIC in key]
        gate = bucket.hold(On("list", "default/*"))
        has_started = trio.Event()

        async def start() -> None:
            async with two.run() as b:
                await until(lambda: not b.broker.services.log.partitions)
                has_started.set()

        nursery.start_soon(start)
        await gate.wait_arrived()
        await a.broker.services.topics.delete([TOPIC])
        await bucket.delete(objects)
        gate.open()
        with trio.fail_after(SOON_SECONDS):
            await has_started.wait()


async def test_topics_can_be_deleted_when_all_brokers_are_drained(autojump_clock: MockClock) -> None:
    (one,) = machines(1)
    async with one.run() as a:
        await create(a.broker, 2)
        state = a.broker.services.assignment.state  # type: ignore[attr-defined]
        state.brokers[1] = attrs.evolve(state.brokers[1], is_draining=True)
        refused = (await a.broker.services.topics.create([NewTopic(name="payments", partition_count=1)]))[0]
        assert isinstance(refused, KafkaError)
        assert refused.code == error_codes.BROKER_NOT_AVAILABLE
        (deleted,) = await a.broker.services.topics.delete([TOPIC])
        assert isinstance(deleted, Topic)
        assert not state.placements
