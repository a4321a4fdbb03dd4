"""Clients that create topics, add partitions, and delete and recreate topics, of which other clients may not know."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import aclosing
from random import Random

import attrs
import trio

from kafscale.client.connection import Connection
from kafscale.errors import BrokerUnavailable, KafkaError
from kafscale.store.paths import parse_segment_key
from kafscale.wire import error_codes
from kafscale.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tests.devtools.history.history import History
from tests.devtools.world.group_offsets import Committer
from tests.devtools.world.producers import BY_TOPIC_ID, IdempotentProducer
from tests.devtools.world.routes import Routes
from tests.devtools.world.workload import (
    PAUSE_MAX_SECONDS,
    Connect,
    Knows,
    Reader,
    Repeating,
    Run,
    Topic,
    reconnecting,
    was_done,
)

TIMEOUT_MS = 30_000
DELETE_BY_NAME_VERSION = 5  # the last in which names stand by themselves

COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.0",
    "min.compaction.lag.ms": "0",
}
FORGETFUL = {**COMPACTED, "delete.retention.ms": "1000"}


@attrs.define(eq=False, kw_only=True)
class Grower(Repeating):
    topic: Topic
    partitions_max_count: int

    def _goes_on(self) -> bool:
        return self.topic.partition_count < self.partitions_max_count and Repeating._goes_on(self)

    async def _step(self, connection: Connection) -> None:
        count = self.topic.partition_count + 1
        wanted = CreatePartitionsTopic(name=self.topic.name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS)
        answer = (await connection.request(request, CreatePartitionsResponse)).results[0]
        is_there = answer.error_code == error_codes.INVALID_PARTITIONS  # the reply to an earlier try was lost
        if is_there or was_done(answer.error_code, f"{count} partitions of {self.topic.name}"):
            self.topic.partition_count = count


@attrs.define(eq=False, kw_only=True)
class Recreator:
    """Creates a topic, loads and reads it, deletes it and creates it anew, until `stopping`; then it stays.

    `topics` are all of them, the last one is the current one. `faults` names topics that came back. For
    `behind_max_seconds` after a deletion some brokers may not know of it.
    """

    name: str
    connect: Connect
    history: History
    random: Random
    stopping: trio.Event
    life_max_seconds: float
    behind_max_seconds: float = 0.0
    topics: list[Topic] = attrs.field(factory=list, init=False)
    faults: list[str] = attrs.field(factory=list, init=False)

    async def run(self) -> None:
        while True:
            topic = await self._create()
            await self._load(topic)
            if self.stopping.is_set():
                return
            await self._delete(topic)

    async def read_to_end(self, name: str) -> None:
        """Read the current topic. Raises KafkaError, BrokerUnavailable."""
        await Reader(name=name, topic=self.topics[-1], connect=self.connect, history=self.history).read_to_end()

    def left_behind(self, keys: Iterable[str], *, kept: Container[bytes] = ()) -> list[str]:
        """Return the objects of deleted topics among these keys, except those of the topics with ids in `kept`."""
        deleted = {topic.topic_id: topic.label for topic in self.topics[:-1] if topic.topic_id not in kept}
        found = filter(None, map(parse_segment_key, keys))
        return [f"{key.key} of {deleted[key.topic_id]} is left" for key in found if key.topic_id in deleted]

    async def _create(self) -> Topic:
        label = f"{self.name}~{len(self.topics)}"
        deadline = trio.current_time() + self.behind_max_seconds
        while True:
            try:
                topic = await create_topic(self.connect, self.name, label=label)
            except BrokerUnavailable:
                await trio.sleep(PAUSE_MAX_SECONDS)
                continue
            if all(topic.topic_id != earlier.topic_id for earlier in self.topics):
                break
            if trio.current_time() >= deadline:
                self.faults.append(f"{self.topics[-1].label} is there again after its deletion")
                break
            await trio.sleep(PAUSE_MAX_SECONDS)
        self.topics.append(topic)
        return topic

    async def _load(self, topic: Topic) -> None:
        """Load a topic: its producer gets all answers, or is cancelled before."""
        stopping = trio.Event()
        producer = IdempotentProducer(
            name=f"{topic.label}-producer",
            topic=topic,
            connect=self.connect,
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.run)
            await self._wait_life()
            stopping.set()
            if not self.stopping.is_set() and self.random.random() < 0.5:
                nursery.cancel_scope.cancel()

    async def _wait_life(self) -> None:
        with trio.move_on_after(self.random.uniform(0, self.life_max_seconds)):
            await self.stopping.wait()

    async def _delete(self, topic: Topic) -> None:
        self.history.note(f"deleting {topic.label}")
        is_gone = False

        async def delete(connection: Connection) -> None:
            nonlocal is_gone
            code = await self._ask_to_delete(connection, topic)
            # It is not there if the reply to an earlier try was lost.
            is_gone = code in (error_codes.NONE, error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.UNKNOWN_TOPIC_ID)
            if not is_gone:
                was_done(code, f"deletion of {topic.name}")

        await reconnecting(self.connect, delete, while_true=lambda: not is_gone)
        self._forget(topic)

    async def _ask_to_delete(self, connection: Connection, topic: Topic) -> int:
        request = DeleteTopicsRequest(topic_names=[topic.name], timeout_ms=TIMEOUT_MS)
        reply = await connection.send(request, DeleteTopicsResponse, version=DELETE_BY_NAME_VERSION)
        return (await reply.wait()).responses[0].error_code

    def _forget(self, topic: Topic) -> None:
        for index in range(topic.partition_count):
            self.history.forget(topic.partition_name(index))


async def create_topic(
    connect: Connect, name: str, configs: Mapping[str, str] | None = None, *, label: str | None = None
) -> Topic:
    """Create a topic with the default number of partitions. Raises BrokerUnavailable, KafkaError."""
    async with aclosing(await connect()) as connection:
        if configs:
            await _create_with(connection, name, configs)
        while True:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
            found = (await connection.request(request, MetadataResponse)).topics[0]
            if not found.error_code:
                return Topic(name, found.topic_id, len(found.partitions), label or name)
            await trio.sleep(PAUSE_MAX_SECONDS)


async def _create_with(connection: Connection, name: str, configs: Mapping[str, str]) -> None:
    wanted = CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    answer = (await connection.request(CreateTopicsRequest(topics=[wanted]), CreateTopicsResponse)).topics[0]
    if answer.error_code not in (error_codes.NONE, error_codes.TOPIC_ALREADY_EXISTS):
        raise KafkaError(answer.error_code, answer.error_message or name)


GROUP = "guides"
CLIENTS_PAUSE_MAX_SECONDS = 0.5
READER_PAUSE_SECONDS = 0.3
OFFSETS_APART_COUNT = 1_000_000  # what is committed of two topics differs


@attrs.define(eq=False, kw_only=True)
class ClusterRecreator(Recreator):
    """A `Recreator` whose clients find leaders and coordinators by `routes`. `knows` is as for a `Reader`.

    Brokers hear of a deletion one after the other, and requests may arrive long after, so all writes, commits and
    deletions here name the topic by its id. Some clients go on with a deleted topic: they must be refused, also while
    there is another topic of its name, which must not change.
    """

    routes: Routes
    knows: Knows
    _clients: trio.Nursery = attrs.field(init=False)
    _loading: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)  # the latest topic's
    _committer: Committer = attrs.field(init=False)

    async def run(self) -> None:
        async with trio.open_nursery() as self._clients:
            await Recreator.run(self)
            self._clients.cancel_scope.cancel()
        for topic in self.topics[:-1]:
            self._forget(topic)  # what has been acknowledged by brokers that had not heard of the deletion

    async def read_to_end(self, name: str) -> None:
        """Read the current topic, and ask for its offsets. Raises KafkaError, BrokerUnavailable."""
        topic = self.topics[-1]
        await self._reader(name, topic).read_to_end()
        for index in range(topic.partition_count):
            self.history.has_read_all(name, topic.partition_name(index))
        await self._committer.check()

    async def _load(self, topic: Topic) -> None:
        """Load a topic: its clients end, are cut off, or go on until the load of the next topic ends."""
        self._clients.start_soon(self._reader("follower", topic).run)
        stopping, has_stopped, loading = trio.Event(), trio.Event(), trio.CancelScope()
        runs = list(self._writers(topic, stopping))

        async def load() -> None:
            with loading:
                async with trio.open_nursery() as writers:
                    for run in runs:
                        writers.start_soon(run)
            has_stopped.set()

        self._clients.start_soon(load)
        await self._wait_life()
        self._loading.cancel()
        self._loading = loading
        ending = self.random.randrange(3)
        if self.stopping.is_set() or ending == 0:
            stopping.set()
            await has_stopped.wait()
        elif ending == 1:
            loading.cancel()

    def _writers(self, topic: Topic, stopping: trio.Event) -> Iterator[Run]:
        for index in range(topic.partition_count):
            producer = IdempotentProducer(
                name=f"{topic.label}-producer{index}",
                topic=topic,
                connect=self.routes.to_leader(topic, index),
                history=self.history,
                random=Random(self.random.random()),
                stopping=stopping,
                pause_max_seconds=CLIENTS_PAUSE_MAX_SECONDS,
                partitions=[index],
                version=BY_TOPIC_ID,
            )
            yield producer.run
        self._committer = Committer(
            group=GROUP,
            topic=topic,
            connect=self.routes.to_coordinator(GROUP),
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
            pause_max_seconds=CLIENTS_PAUSE_MAX_SECONDS,
            by_topic_id=True,
            first_offset=len(self.topics) * OFFSETS_APART_COUNT,
        )
        yield self._committer.run

    def _reader(self, name: str, topic: Topic) -> Reader:
        return Reader(
            name=name,
            topic=topic,
            connect=self.connect,
            history=self.history,
            knows=self.knows,
            pause_seconds=READER_PAUSE_SECONDS,
        )

    async def _ask_to_delete(self, connection: Connection, topic: Topic) -> int:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic.topic_id)], timeout_ms=TIMEOUT_MS)
        return (await connection.request(request, DeleteTopicsResponse)).responses[0].error_code
