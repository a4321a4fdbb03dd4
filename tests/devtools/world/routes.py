"""Routes of clients to brokers: ask any broker for a partition's leader or a group's coordinator.

The answer may be outdated. Every connection takes a moment, so that a refused client does not spin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from random import Random
from typing import Any, TypeVar, cast

import attrs
import trio

from kafscale.client.connection import Connection, Reply
from kafscale.errors import BrokerUnavailable
from kafscale.wire import error_codes
from kafscale.wire.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.messages.offsets import OffsetFetchRequest
from kafscale.wire.messages.records import (
    DeleteRecordsRequest,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    PartitionData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kafscale.wire.messages.topics import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kafscale.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
)
from tests.devtools.world.simulated_broker import SimulatedBroker
from tests.devtools.world.transactional.calls import TRANSACTIONS, Place, by_place
from tests.devtools.world.workload import Connect, Topic

PAUSE_MAX_SECONDS = 0.1
STALE_PROBABILITY = 0.3  # that a client still asks a broker that was superseded


@attrs.define(eq=False, kw_only=True)
class Routes:
    """`lives` returns the connectable lives of each broker, the newest last."""

    lives: Callable[[], Sequence[Sequence[SimulatedBroker]]]
    random: Random

    async def to_any(self) -> Connection:
        await self.pause()
        return (await (await self._any()).open_connection())[1]

    def to_leader(self, topic: Topic, index: int) -> LeaderRoute:
        return LeaderRoute(self, topic, index)

    def to_coordinator(self, group: str) -> Connect:
        async def connect() -> Connection:
            async with aclosing(await self.to_any()) as connection:
                request = FindCoordinatorRequest(coordinator_keys=[group])
                (found,) = (await connection.request(request, FindCoordinatorResponse)).coordinators
            life = await self.find(-1 if found.error_code else found.node_id, may_be_stale=False)
            return (await life.open_connection())[1]

        return connect

    def to_all(self, *, may_be_stale: bool) -> Connect:
        async def connect() -> Connection:
            await self.pause()
            life = await self._any()
            _, connection = await life.open_connection_of(SpreadConnection)
            connection.routes, connection.may_be_stale = self, may_be_stale
            return connection

        return connect

    def broker_ids(self) -> list[int]:
        return [lives[-1].settings.broker_id for lives in self.lives() if lives]

    async def find(self, broker_id: int, *, may_be_stale: bool = True) -> SimulatedBroker:
        """Return the life that answers at a broker's address. Raises BrokerUnavailable."""
        of_it = [lives for lives in self.lives() if lives and lives[-1].settings.broker_id == broker_id]
        return await self._choose(of_it[0] if of_it else (), may_be_stale=may_be_stale)

    async def _any(self) -> SimulatedBroker:
        up = [lives for lives in self.lives() if lives]
        return await self._choose(self.random.choice(up) if up else (), may_be_stale=True)

    async def _choose(self, lives: Sequence[SimulatedBroker], *, may_be_stale: bool) -> SimulatedBroker:
        if not lives:
            await self.pause()
            raise BrokerUnavailable("no broker is there")
        is_stale = may_be_stale and len(lives) > 1 and self.random.random() < STALE_PROBABILITY
        return self.random.choice(lives[:-1]) if is_stale else lives[-1]

    async def pause(self) -> None:
        await trio.sleep(self.random.uniform(0, PAUSE_MAX_SECONDS))


@attrs.define(eq=False)
class LeaderRoute:
    routes: Routes
    topic: Topic
    index: int

    async def __call__(self) -> Connection:
        async with aclosing(await self.routes.to_any()) as connection:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=self.topic.name)])
            (found,) = (await connection.request(request, MetadataResponse)).topics
        leaders = [partition.leader_id for partition in found.partitions if partition.partition_index == self.index]
        life = await self.routes.find(leaders[0] if leaders else -1)
        return (await life.open_connection())[1]


R = TypeVar("R")

GROUPS = 0  # FindCoordinator: the kind of key

# Of requests for one partition: which.
_PLACES: Mapping[type, Callable[[Any], Place]] = {
    ListOffsetsRequest: lambda asked: (asked.topics[0].name, asked.topics[0].partitions[0].partition_index),
    DeleteRecordsRequest: lambda asked: (asked.topics[0].name, asked.topics[0].partitions[0].partition_index),
    OffsetForLeaderEpochRequest: lambda asked: (asked.topics[0].topic, asked.topics[0].partitions[0].partition),
    WriteTxnMarkersRequest: lambda asked: (
        asked.markers[0].topics[0].name,
        asked.markers[0].topics[0].partition_indexes[0],
    ),
}


def _coordinated(asked: Any) -> tuple[int, str | None]:
    """Return the kind and the key of the coordinator of a request; any broker gives a producer id without a key."""
    match asked:
        case OffsetFetchRequest():
            return GROUPS, asked.groups[0].group_id
        case DescribeTransactionsRequest():
            return TRANSACTIONS, asked.transactional_ids[0]
        case AddOffsetsToTxnRequest():
            return TRANSACTIONS, asked.transactional_id
    group = getattr(asked, "group_id", None)
    return (GROUPS, group) if group is not None else (TRANSACTIONS, getattr(asked, "transactional_id", None))


@attrs.define(eq=False, kw_only=True, repr=False)
class SpreadConnection(Connection):
    """Connection to any broker, which sends each request to its leader or coordinator; set `routes` before use.

    Produce and Fetch are split by leaders, and the answers joined. A partition without a known and reachable leader is
    answered with LEADER_NOT_AVAILABLE. After any error for a partition no more is written to it until the client
    reconnects, since later batches would be out of order.

    `may_be_stale`: the others may be superseded.
    """

    routes: Routes = attrs.field(init=False)
    may_be_stale: bool = attrs.field(default=False, init=False)
    _leaders: dict[Place, int] = attrs.field(factory=dict, init=False)
    _coordinators: dict[tuple[int, str], int] = attrs.field(factory=dict, init=False)
    _lines: dict[int, Connection] = attrs.field(factory=dict, init=False)
    _lives: dict[int, SimulatedBroker] = attrs.field(factory=dict, init=False)
    _failed: set[Place] = attrs.field(factory=set, init=False)  # where nothing is written any more

    def leader_life(self, topic: str, index: int) -> SimulatedBroker | None:
        """Return the life that was asked last as the leader of a partition."""
        return self._lives.get(self._leaders.get((topic, index), -1))

    def coordinator_life(self, group: str) -> SimulatedBroker | None:
        """Return the life that was asked last as the coordinator of a group."""
        return self._lives.get(self._coordinators.get((GROUPS, group), -1))

    async def send(self, message: object, response_class: type[R], *, version: int | None = None) -> Reply[R]:
        asked = type(message)
        if isinstance(message, ProduceRequest):
            return cast(Reply[R], await self._produce(message, version))
        if isinstance(message, FetchRequest):
            return cast(Reply[R], await self._fetch(message))
        if isinstance(message, ListTransactionsRequest):
            return cast(Reply[R], _Listed([await self._line(broker_id) for broker_id in self.routes.broker_ids()]))
        line: Connection | None = None
        if asked in _PLACES:
            line = await self._to_leader(_PLACES[asked](message))
        else:
            kind, key = _coordinated(message)
            if key is not None:
                line = await self._to_coordinator(kind, key)
        if line is None:
            return await Connection.send(self, message, response_class, version=version)
        return await line.send(message, response_class, version=version)

    async def aclose(self) -> None:
        for line in self._lines.values():
            await line.aclose()
        await Connection.aclose(self)

    def forget(self, place: Place) -> None:
        self._leaders.pop(place, None)

    def write_no_more(self, places: Iterable[Place]) -> None:
        self._failed.update(places)

    async def _produce(self, message: ProduceRequest, version: int | None) -> _Produced:
        places = [(topic.name, partition.index) for topic in message.topic_data for partition in topic.partition_data]
        sent = []
        for broker_id, theirs in (await self._by_leader(set(places) - self._failed, places)).items():
            data = [
                TopicProduceData(
                    name=topic.name,
                    partition_data=[
                        partition for partition in topic.partition_data if (topic.name, partition.index) in theirs
                    ],
                )
                for topic in message.topic_data
            ]
            part = message.evolve(topic_data=[topic for topic in data if topic.partition_data])
            try:
                line = await self._line(broker_id, may_reopen=False)
                sent.append(await line.send(part, ProduceResponse, version=version))
            except BrokerUnavailable:
                self.write_no_more(theirs)
        return _Produced(self, places, sent)

    async def _fetch(self, message: FetchRequest) -> _Fetched:
        places = [(topic.topic, partition.partition) for topic in message.topics for partition in topic.partitions]
        sent = {}
        for broker_id, theirs in (await self._by_leader(set(places), places)).items():
            topics = [
                topic.evolve(
                    partitions=[
                        partition for partition in topic.partitions if (topic.topic, partition.partition) in theirs
                    ],
                )
                for topic in message.topics
            ]
            part = message.evolve(topics=[topic for topic in topics if topic.partitions])
            try:
                sent[broker_id] = await (await self._line(broker_id)).send(part, FetchResponse)
            except BrokerUnavailable:
                continue
        return _Fetched(self, message.topics, sent)

    async def _by_leader(self, wanted: set[Place], places: Sequence[Place]) -> Mapping[int, Sequence[Place]]:
        found: defaultdict[int, list[Place]] = defaultdict(list)
        for place in places:
            if place in wanted and (broker_id := await self._leader(place)) >= 0:
                found[broker_id].append(place)
        return found

    async def _to_leader(self, place: Place) -> Connection:
        return await self._line(await self._leader(place))

    async def _leader(self, place: Place) -> int:
        if place not in self._leaders:
            topic = place[0]
            request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
            (found,) = (await self.request(request, MetadataResponse)).topics
            leaders = {partition.partition_index: partition.leader_id for partition in found.partitions}
            self._leaders |= {(topic, index): leader for index, leader in leaders.items()}
        return self._leaders.get(place, -1)

    async def _to_coordinator(self, kind: int, key: str) -> Connection:
        if (kind, key) not in self._coordinators:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            (found,) = (await self.request(request, FindCoordinatorResponse)).coordinators
            if found.error_code:
                raise BrokerUnavailable(f"no broker coordinates {key}")
            self._coordinators[kind, key] = found.node_id
        return await self._line(self._coordinators[kind, key], may_reopen=False)

    async def _line(self, broker_id: int, *, may_reopen: bool = True) -> Connection:
        line = self._lines.get(broker_id)
        if line is not None and not (line.is_broken and may_reopen):
            return line
        life = await self.routes.find(broker_id, may_be_stale=self.may_be_stale)
        self._lines[broker_id] = (await life.open_connection())[1]
        self._lives[broker_id] = life
        return self._lines[broker_id]


@attrs.define(eq=False)
class _Produced:
    connection: SpreadConnection
    places: Sequence[Place]
    sent: Sequence[Reply[ProduceResponse]]

    async def wait(self) -> ProduceResponse:
        answers: dict[Place, PartitionProduceResponse] = {}
        for reply in self.sent:
            try:
                answers |= by_place(await reply.wait())
            except BrokerUnavailable:
                continue
        for place in self.places:
            missing = PartitionProduceResponse(index=place[1], error_code=error_codes.LEADER_NOT_AVAILABLE)
            if answers.setdefault(place, missing).error_code:
                self.connection.write_no_more([place])
        return ProduceResponse(
            responses=[
                TopicProduceResponse(name=topic, partition_responses=[answer]) for (topic, _), answer in answers.items()
            ]
        )


@attrs.define(eq=False)
class _Fetched:
    connection: SpreadConnection
    topics: Sequence[FetchTopic]
    sent: Mapping[int, Reply[FetchResponse]]  # by broker

    async def wait(self) -> FetchResponse:
        answers: dict[tuple[bytes, int], PartitionData] = {}
        for reply in self.sent.values():
            try:
                response = await reply.wait()
            except BrokerUnavailable:
                await reply.connection.aclose()  # what comes late is not waited for
                continue
            answers |= {
                (topic.topic_id, partition.partition_index): partition
                for topic in response.responses
                for partition in topic.partitions
            }
        responses = []
        is_refused = False
        for topic in self.topics:
            partitions = []
            for index in (partition.partition for partition in topic.partitions):
                answer = answers.get((topic.topic_id, index))
                if answer is None or answer.error_code in error_codes.RETRIABLE:
                    is_refused = True
                    self.connection.forget((topic.topic, index))
                    answer = PartitionData(partition_index=index, error_code=error_codes.LEADER_NOT_AVAILABLE)
                partitions.append(answer)
            responses.append(FetchableTopicResponse(topic_id=topic.topic_id, partitions=partitions))
        if is_refused:
            await self.connection.routes.pause()  # who asks again at once would not let time pass
        return FetchResponse(responses=responses)


@attrs.define(eq=False)
class _Listed:
    lines: Sequence[Connection]

    async def wait(self) -> ListTransactionsResponse:
        found = [await line.request(ListTransactionsRequest(), ListTransactionsResponse) for line in self.lines]
        return ListTransactionsResponse(
            error_code=next((answer.error_code for answer in found if answer.error_code), 0),
            transaction_states=[state for answer in found for state in answer.transaction_states],
        )
