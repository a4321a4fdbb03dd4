"""A client of a cluster: it finds the leaders of partitions and the coordinators of groups.

Metadata is remembered by topic until the caller learns that it is outdated and calls `forget`. A topic that is being
created is waited for.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import attrs
import trio

from kafscale.client.connection import Connection, connect_to
from kafscale.client.retrying import WORTH_ANOTHER, Attempts
from kafscale.config import Address
from kafscale.errors import BrokerUnavailable
from kafscale.login.failures import check, failure
from kafscale.login.security import PLAINTEXT, ClientSecurity
from kafscale.wire import error_codes
from kafscale.wire.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.messages.topics import MetadataRequest, MetadataRequestTopic, MetadataResponse

GROUP, TRANSACTION = 0, 1  # of FindCoordinator's keys
CREATION_SECONDS = 3.0  # in which a topic that was asked for is there, unless the broker creates none

R = TypeVar("R")


@attrs.frozen(kw_only=True)
class TopicMetadata:
    """A topic. `leaders` maps each partition to its leader's node id."""

    name: str
    topic_id: bytes
    leaders: dict[int, int]


@attrs.define(eq=False, kw_only=True, repr=False)
class Client:
    """Made by `connect`. Holds a connection to each needed broker, and opens it again when it breaks."""

    bootstrap: Address
    client_id: str
    security: ClientSecurity = PLAINTEXT
    _connections: dict[Address, Connection] = attrs.field(factory=dict, init=False)
    _opening: dict[Address, trio.Lock] = attrs.field(factory=lambda: defaultdict(trio.Lock), init=False)
    _former: list[Connection] = attrs.field(factory=list, init=False)  # on which others may still wait for replies
    _nodes: dict[int, Address] = attrs.field(factory=dict, init=False)
    _topics: dict[str, TopicMetadata] = attrs.field(factory=dict, init=False)

    async def request(self, message: object, response_class: type[R]) -> R:
        return await (await self.connection_to(self.bootstrap)).request(message, response_class)

    async def metadata(
        self, topics: Iterable[str] | None = None, *, create: bool = False, with_rights: bool = False
    ) -> MetadataResponse:
        """Return metadata of some topics, or of all, with the errors of single topics.

        With `with_rights`, `topic_authorized_operations` has the user's operations as bits.
        """
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(
            topics=wanted, allow_auto_topic_creation=create, include_topic_authorized_operations=with_rights
        )
        response = await self.request(request, MetadataResponse)
        self._nodes = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
        return response

    async def topic(self, name: str, *, create: bool = False) -> TopicMetadata:
        """Return a topic; a missing one is created if `create` is set. Raises KafkaError, BrokerUnavailable."""
        if name not in self._topics:
            self._topics[name] = await self._look_up(name, create)
        return self._topics[name]

    def forget(self, topic: str) -> None:
        """Look a topic up again when it is needed next."""
        self._topics.pop(topic, None)

    async def leader(self, topic: str, partition: int) -> Connection:
        """Return a connection to the leader of a partition. Raises KafkaError, BrokerUnavailable."""
        found = await self.topic(topic)
        if partition not in found.leaders:
            there = f"its partitions are 0 to {max(found.leaders)}" if found.leaders else "it has none"
            raise failure(error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"partition {partition} of topic '{topic}'", there)
        return await self.node(found.leaders[partition])

    async def coordinator(self, group: str) -> Connection:
        """Return a connection to the coordinator of a group. Raises KafkaError, BrokerUnavailable."""
        return await self._coordinator(GROUP, group, f"group '{group}'")

    async def transaction_coordinator(self, transactional_id: str) -> Connection:
        """Return a connection to the coordinator of a transactional id. Raises KafkaError, BrokerUnavailable."""
        return await self._coordinator(TRANSACTION, transactional_id, f"transactional id '{transactional_id}'")

    async def _coordinator(self, key_type: int, key: str, what: str) -> Connection:
        attempts = Attempts()
        while True:
            request = FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key])
            response = await self.request(request, FindCoordinatorResponse)
            found = response.coordinators[0] if response.coordinators else response
            if found.error_code not in WORTH_ANOTHER or not await attempts.another():
                break
        check(found.error_code, f"coordinator of {what}", found.error_message)
        return await self.connection_to(Address(found.host, found.port))

    async def connection_to(self, address: Address) -> Connection:
        """Return the connection to a broker, opened when it is first needed. Raises BrokerUnavailable."""
        async with self._opening[address]:
            connection = self._connections.get(address)
            if connection is None or connection.is_over:
                if connection is not None:
                    await self._keep_former(connection)
                connection = await connect_to(address, self.client_id, security=self.security)
                self._connections[address] = connection
            return connection

    async def _keep_former(self, connection: Connection) -> None:
        """Keep a connection for replies that others wait for, and close the broken ones."""
        former = [*self._former, connection]
        self._former = [kept for kept in former if not kept.is_broken]
        for broken in former:
            if broken.is_broken:
                await broken.aclose()

    def adopt(self, connection: Connection) -> None:
        self._connections[connection.address] = connection

    async def all_connections(self) -> list[Connection]:
        """Return connections to all brokers of the last metadata. Raises BrokerUnavailable."""
        return [await self.connection_to(address) for address in self._nodes.values()]

    async def node(self, node_id: int) -> Connection:
        """Return the connection to a broker of the last metadata, else to the bootstrap. Raises BrokerUnavailable."""
        return await self.connection_to(self._nodes.get(node_id, self.bootstrap))

    @property
    def node_ids(self) -> list[int]:
        """Return the brokers of the last metadata."""
        return list(self._nodes)

    async def aclose(self) -> None:
        for connection in (*self._connections.values(), *self._former):
            await connection.aclose()

    async def _look_up(self, name: str, create: bool) -> TopicMetadata:
        attempts, creation = Attempts(), Attempts(CREATION_SECONDS)
        while True:
            found = (await self.metadata([name], create=create)).topics[0]
            without_leader = (part.error_code for part in found.partitions if part.leader_id < 0)
            error_code = found.error_code or next(without_leader, error_codes.NONE)
            is_missing = create and error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
            if not (is_missing or error_code in WORTH_ANOTHER):
                break
            if not await (creation if is_missing else attempts).another():
                break
        if error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
            raise failure(error_code, f"topic '{name}'", await self._near(name, create=create))
        check(error_code, f"topic '{name}'")
        leaders = {partition.partition_index: partition.leader_id for partition in found.partitions}
        return TopicMetadata(name=name, topic_id=found.topic_id, leaders=leaders)

    async def _near(self, name: str, *, create: bool) -> str:
        names = [topic.name or "" for topic in (await self.metadata()).topics]
        nearest = difflib.get_close_matches(name, names, n=1)
        told = f"did you mean '{nearest[0]}'?" if nearest else "`kafscale topics list` shows all topics"
        if create:
            told += " This broker creates none: `kafscale topics create` does"
        return f"it does not exist; {told}"


@asynccontextmanager
async def connect(
    bootstrap: Address | Sequence[Address], client_id: str = "kafscale", *, security: ClientSecurity = PLAINTEXT
) -> AsyncIterator[Client]:
    """Open a client by the first broker of `bootstrap` that answers. Raises BrokerUnavailable, KafkaError."""
    first, *others = [bootstrap] if isinstance(bootstrap, Address) else bootstrap
    client = Client(bootstrap=first, client_id=client_id, security=security)
    try:
        while True:
            try:
                await client.connection_to(client.bootstrap)
                break
            except BrokerUnavailable:
                if not others:
                    raise
                client.bootstrap = others.pop(0)
        yield client
    finally:
        await client.aclose()
