"""Transactional clients of a simulation: their topics, producers and consumers, and the checks at the end.

Some of a topic's records are written outside of transactions. A topic is compacted, or loses its oldest records, or
keeps all. Most transactional ids have two producers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from random import Random
from typing import Any

import attrs
import trio

from kafscale.errors import BrokerUnavailable
from kafscale.wire import error_codes
from kafscale.wire.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tests.devtools.history.history import Content, History
from tests.devtools.history.seen import CommittedRead, Sent, TransactionsSeen
from tests.devtools.world.producers import PlainProducer
from tests.devtools.world.topic_clients import create_topic
from tests.devtools.world.transactional.calls import NEW, OLD
from tests.devtools.world.transactional.copier import Copier, OffsetsAsker, copied_offsets, wrong_copies
from tests.devtools.world.transactional.latecomer import Latecomer
from tests.devtools.world.transactional.producer import LoadedTopic, TransactionalProducer
from tests.devtools.world.transactional.reader import CommittedReader, StabilityAsker, UncommittedReader
from tests.devtools.world.workload import Connect, Deleter, Knows, Reader, Topic, knows_all

TOPICS_MAX_COUNT = 2
IDS_MAX_COUNT = 3
COPIER, GROUP = "copier", "copiers"
OFTEN, SELDOM = 0.5, 0.25  # how often somebody takes part
TIMEOUTS_MS = (300, 1_000, 5_000)
SETTLED_STATES = {"Empty", "CompleteCommit", "CompleteAbort"}
SETTLE_SECONDS = 60.0  # simulated: longer than any timeout, and than coordinators look away
SETTLE_POLL_SECONDS = 1.0

_NOBODY = (error_codes.TRANSACTIONAL_ID_NOT_FOUND, error_codes.NOT_COORDINATOR)  # of an unused id
_LATER = frozenset({error_codes.COORDINATOR_LOAD_IN_PROGRESS, error_codes.COORDINATOR_NOT_AVAILABLE})


@attrs.define(eq=False, kw_only=True)
class _PlainSends(History):
    seen: TransactionsSeen
    _contents: dict[str, Content] = attrs.field(factory=dict, init=False)

    def sent(self, producer: str, partition: str, value: str, **more: Any) -> None:
        assert more["key"] is None, "it would cover values of others"
        self._contents[value] = more["content"]
        self.seen.history.sent(producer, partition, value, **more)

    def acknowledged(self, partition: str, value: str, offset: int | None = None) -> None:
        self.seen.history.acknowledged(partition, value, offset)
        self.seen.sent_plain(Sent(partition, value, value, self._contents[value], offset))


@attrs.frozen(kw_only=True)
class TopicKind:
    configs: Mapping[str, str] = attrs.field(factory=dict)
    keys_count: int | None = None
    is_deleted_from: bool = False

    @property
    def is_compacted(self) -> bool:
        return "cleanup.policy" in self.configs

    @property
    def is_bounded(self) -> bool:
        return any(name.startswith("retention.") for name in self.configs)

    @property
    def forgets_tombstones(self) -> bool:
        return "delete.retention.ms" in self.configs


@attrs.frozen
class Copying:
    source: Topic
    destination: Topic


@attrs.define(eq=False, kw_only=True)
class TransactionalClients:
    """The clients. `connect` may reach a superseded broker, `connect_newest` does not.

    `has_lost`: acknowledged data may be lost with a disk, and then half a transaction. `has_rivals`: each transactional
    id has two producers, otherwise some have. `knows` is as for a `Reader`. All pauses are `pace` times as long as with
    one broker.
    """

    connect: Connect
    connect_newest: Connect
    history: History
    random: Random
    kinds: Sequence[TopicKind]
    has_lost: bool
    has_rivals: bool = False
    knows: Knows = knows_all
    pace: float = 1.0
    readers_pause_seconds: float = 0.0
    timeouts_ms: Sequence[int] = TIMEOUTS_MS
    seen: TransactionsSeen = attrs.field(init=False)
    topics: list[Topic] = attrs.field(factory=list, init=False)
    faults: list[str] = attrs.field(factory=list, init=False)
    readers: list[Reader] = attrs.field(factory=list, init=False)  # that go on for as long as the run lasts
    _kinds: list[TopicKind] = attrs.field(factory=list, init=False)  # of each topic
    _copying: Copying | None = attrs.field(default=None, init=False)
    _asked: set[tuple[int, int]] = attrs.field(factory=set, init=False)  # offsets that were to be committed
    _ids: list[str] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.seen = TransactionsSeen(self.history)
        self._ids = [f"tx{number}" for number in range(self.random.randint(1, IDS_MAX_COUNT))]

    async def create_topics(self) -> None:
        for number in range(self.random.randint(1, TOPICS_MAX_COUNT)):
            is_copied = number == 0 and not self.has_lost and self.random.random() < OFTEN
            kind = TopicKind() if is_copied else self.random.choice(self.kinds)
            topic = await create_topic(self.connect_newest, f"payments{number}", kind.configs)
            if kind.is_bounded:
                for index in range(topic.partition_count):
                    self.history.deleting(topic.partition_name(index), math.inf)
            self.topics.append(topic)
            self._kinds.append(kind)
        if self._kinds[0] == TopicKind() and not self.has_lost:  # whose records all stay
            self._copying = Copying(self.topics[0], await create_topic(self.connect_newest, "copies"))
            self._ids.append(COPIER)

    @property
    def all_topics(self) -> Sequence[Topic]:
        return self.topics if self._copying is None else [*self.topics, self._copying.destination]

    def start_readers(self, nursery: trio.Nursery) -> None:
        for topic in self.topics:
            self.readers.append(self._committed("follower", topic))
            if self.random.random() < SELDOM:
                self.readers.append(self._uncommitted("follower", topic))
        for reader in self.readers:
            nursery.start_soon(reader.run)
        if self.random.random() < OFTEN:
            nursery.start_soon(self._asker().run)
        if not self.has_lost and self.random.random() < OFTEN:
            nursery.start_soon(self._latecomer().run)
        if self._copying is not None:
            nursery.start_soon(self._offsets_asker(self._copying).run)

    def start_writers(self, nursery: trio.Nursery, stopping: trio.Event) -> None:
        for transactional_id in [known_id for known_id in self._ids if known_id != COPIER]:
            for number in range(2 if self.has_rivals else self.random.choice([1, 1, 2])):
                producer = self._producer(f"{transactional_id}.{number}", transactional_id, stopping)
                nursery.start_soon(producer.run)
        for topic, kind in zip(self.topics, self._kinds, strict=True):
            if self.random.random() < OFTEN:
                nursery.start_soon(self._plain(topic, stopping).run)
            if kind.is_deleted_from:
                nursery.start_soon(self._deleter(topic, stopping).run)

        if self._copying is not None:
            for number in range(2 if self.has_rivals else self.random.choice([1, 2])):
                copier = self._copier(f"{COPIER}.{number}", self._copying, stopping)
                nursery.start_soon(copier.run)

    def _copier(self, name: str, copying: Copying, stopping: trio.Event) -> Copier:
        return Copier(
            name=name,
            transactional_id=COPIER,
            topics=[LoadedTopic(topic=copying.destination)],
            source=copying.source,
            group=GROUP,
            asked=self._asked,
            connect=self.connect_newest,
            seen=self.seen,
            random=Random(self.random.random()),
            stopping=stopping,
            protocol=self.random.choice([OLD, NEW]),
            timeout_ms=self.random.choice(self.timeouts_ms),
            pause_max_seconds=self.pace * 0.05,
        )

    def _producer(self, name: str, transactional_id: str, stopping: trio.Event) -> TransactionalProducer:
        return TransactionalProducer(
            name=name,
            transactional_id=transactional_id,
            topics=[
                LoadedTopic(topic=topic, keys_count=kind.keys_count, is_compacted=kind.is_compacted)
                for topic, kind in zip(self.topics, self._kinds, strict=True)
            ],
            connect=self.connect,
            seen=self.seen,
            random=Random(self.random.random()),
            stopping=stopping,
            protocol=self.random.choice([OLD, NEW]),
            timeout_ms=self.random.choice(self.timeouts_ms),
            pause_max_seconds=self.pace * self.random.choice([0.01, 0.05]),
            has_lost=self.has_lost,
        )

    def _plain(self, topic: Topic, stopping: trio.Event) -> PlainProducer:
        return PlainProducer(
            name=f"plain@{topic.label}",
            topic=topic,
            connect=self.connect,
            history=_PlainSends(seen=self.seen),
            random=Random(self.random.random()),
            stopping=stopping,
            pause_max_seconds=self.pace * 0.1,
        )

    def _deleter(self, topic: Topic, stopping: trio.Event) -> Deleter:
        return Deleter(
            topic=topic,
            connect=self.connect_newest,
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
            pause_max_seconds=self.pace * 0.2,
        )

    def _asker(self) -> StabilityAsker:
        return StabilityAsker(
            topics=self.topics,
            connect=self.connect_newest,
            history=self.history,
            random=Random(self.random.random()),
            pause_max_seconds=self.pace * 0.2,
            knows=self.knows,
        )

    def _offsets_asker(self, copying: Copying) -> OffsetsAsker:
        return OffsetsAsker(
            group=GROUP,
            source=copying.source,
            asked=self._asked,
            connect=self.connect_newest,
            random=Random(self.random.random()),
            pause_max_seconds=self.pace * 0.1,
            faults=self.faults,
        )

    def _latecomer(self) -> Latecomer:
        return Latecomer(
            topics=self.all_topics,
            connect=self.connect_newest,
            random=Random(self.random.random()),
            pause_max_seconds=self.pace * 0.2,
            faults=self.faults,
        )

    def _uncommitted(self, name: str, topic: Topic) -> UncommittedReader:
        return UncommittedReader(name=name, topic=topic, **self._of_readers())

    def _committed(self, name: str, topic: Topic) -> CommittedReader:
        return CommittedReader(name=name, topic=topic, seen=self.seen, **self._of_readers())

    def _of_readers(self) -> dict[str, Any]:
        return {
            "connect": self.connect_newest,
            "history": self.history,
            "knows": self.knows,
            "pause_seconds": self.readers_pause_seconds + (self.pace - 1) * 0.05,
        }

    async def read_back(self, name: str) -> None:
        """Wait until every transaction has ended, and read everything. Raises KafkaError, BrokerUnavailable."""
        await self.wait_settled(name)
        for topic in self.all_topics:
            uncommitted, committed = self._uncommitted(name, topic), self._committed(name, topic)
            await uncommitted.read_to_end()
            await committed.read_to_end()
            if committed.ends != uncommitted.ends:
                self.faults.append(f"{name}: {topic.label} is stable up to {committed.ends}, of {uncommitted.ends}")
            for index in range(topic.partition_count):
                self.seen.has_read_all(name, topic.partition_name(index))
        if self._copying is not None:
            await self._check_copies(name, self._copying)

    async def _check_copies(self, name: str, copying: Copying) -> None:
        offsets = await self._stable_offsets(copying)
        if offsets is None:
            self.faults.append(f"{name}: the offsets of {GROUP} are not stable")
            return

        def read(topic: Topic) -> dict[int, Mapping[str, CommittedRead]]:
            return {
                index: self.seen.read_by(name, topic.partition_name(index)) for index in range(topic.partition_count)
            }

        copies = (value for values in read(copying.destination).values() for value in values)
        self.faults += [f"{name}: {wrong_copy}" for wrong_copy in wrong_copies(read(copying.source), copies, offsets)]

    async def _stable_offsets(self, copying: Copying) -> Mapping[int, int] | None:
        while True:
            with suppress(BrokerUnavailable):
                async with aclosing(await self.connect_newest()) as connection:
                    return await copied_offsets(connection, GROUP, copying.source)
            await trio.sleep(SETTLE_POLL_SECONDS)

    async def wait_settled(self, name: str) -> None:
        """Ask the coordinators until no transaction is open; each has a timeout, so that must happen."""
        with trio.move_on_after(SETTLE_SECONDS) as waiting:
            while unsettled := await self._unsettled():
                await trio.sleep(SETTLE_POLL_SECONDS)
        if waiting.cancelled_caught:
            self.faults.append(f"{name}: transactions without an end: {unsettled}")

    async def _unsettled(self) -> Mapping[str, str]:
        """Return the ids with an open transaction, by Describe and List, which must know the same ones."""
        unknown = dict.fromkeys(self._ids, "unknown")
        answers = []
        try:
            async with aclosing(await self.connect_newest()) as connection:
                for known_id in self._ids:
                    request = DescribeTransactionsRequest(transactional_ids=[known_id])
                    answers += (await connection.request(request, DescribeTransactionsResponse)).transaction_states
                listed = await connection.request(ListTransactionsRequest(), ListTransactionsResponse)
        except BrokerUnavailable:
            return unknown
        codes = {listed.error_code, *(answer.error_code for answer in answers)}
        if codes & _LATER:
            return unknown
        assert codes <= {0, *_NOBODY}, codes
        found = {
            transaction_state.transactional_id: transaction_state.transaction_state
            for transaction_state in listed.transaction_states
        }
        described = {answer.transactional_id for answer in answers if not answer.error_code}
        if found.keys() != described:  # as while a coordinator moves
            return dict.fromkeys(found.keys() ^ described, "listed or described, and not both")
        return {known_id: state for known_id, state in found.items() if state not in SETTLED_STATES}

    def problems(self) -> list[str]:
        if self.has_lost:
            return self.faults
        may_go = any(kind.forgets_tombstones for kind in self._kinds)
        return [*self.faults, *self.seen.problems(tombstones_may_go=may_go)]
