"""The brokers of a cluster: leaders and coordinators, asked again while they move or restart.

Versions are fixed, each one that Kafka 3.0 to 4.x and KafScale have: with EndTxn before version 5 and Produce before 12
a transaction is of the first version of the protocol. Newer versions of EndTxn would raise the epoch, and answer
repeated requests otherwise.
"""

from __future__ import annotations

import math
import re
import socket
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import attrs

from kafscale.config import Address, split_list
from kafscale.errors import BrokerUnavailable, ConfigError, KafkaError, ProtocolError
from kafscale.login.client_protocol import ApiCall, ClientProtocol, PendingReply
from kafscale.login.failures import check, failure
from kafscale.login.sasl import ClientSasl
from kafscale.login.security import PLAINTEXT, ClientSecurity
from kafscale.login.steps import HANDSHAKE_VERSION, SESSION_FRACTION, LoginSteps
from kafscale.network_errors import why_unreachable
from kafscale.wire import codec, error_codes
from kafscale.wire.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.messages.records import (
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ProduceRequest,
)
from kafscale.wire.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kafscale.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from kafscale.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)

VERSIONS: Final[dict[type, int]] = {
    ProduceRequest: 9,
    FetchRequest: 12,  # the last one with names of topics; `ask` is told another one where it is by id
    ListOffsetsRequest: 6,
    MetadataRequest: 10,  # the first one with ids of topics; Kafka has it since 2.8
    FindCoordinatorRequest: 4,
    CreateTopicsRequest: 5,
    InitProducerIdRequest: 4,
    AddPartitionsToTxnRequest: 3,
    EndTxnRequest: 3,
    DescribeTransactionsRequest: 0,
    ListTransactionsRequest: 0,
    SaslHandshakeRequest: HANDSHAKE_VERSION,
    SaslAuthenticateRequest: 1,  # the first one that says how long the session lasts
}
CLIENT_ID: Final = "kafscale-spark"
RECEIVE_BYTES: Final = 1 << 20
R = TypeVar("R")
T = TypeVar("T")


@attrs.define(eq=False, kw_only=True, repr=False)
class BrokerConnection:
    """Asks one thing at a time, or several with `send`. Made by `open`; not to be used after an exception."""

    address: Address
    _socket: socket.socket
    _protocol: ClientProtocol = attrs.field(init=False)
    _replies: deque[PendingReply[Any]] = attrs.field(factory=deque, init=False)
    _session_until: float = attrs.field(default=math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self._protocol = ClientProtocol(peer=str(self.address), client_id=CLIENT_ID)

    @classmethod
    def open(
        cls, address: Address, timeout_seconds: float, *, security: ClientSecurity = PLAINTEXT
    ) -> BrokerConnection:
        """Connect, and log in; each request may take as long. Raises BrokerUnavailable, ConfigError, KafkaError."""
        try:
            connected = socket.create_connection((address.host, address.port), timeout_seconds)
        except OSError as exc:
            raise BrokerUnavailable(f"can't connect to {address}: {why_unreachable(exc)}") from exc
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if security.context is not None:
                connected = _secured(connected, address, security.context)
            connection = cls(address=address, socket=connected)
            if security.sasl is not None:
                connection._log_in(security.sasl)
        except BaseException:
            connected.close()
            raise
        return connection

    @property
    def is_over(self) -> bool:
        """Tell whether the session ends soon, so that another connection is needed."""
        return time.monotonic() >= self._session_until

    def ask(self, request: object, response_class: type[R], *, version: int | None = None) -> R:
        """Send a request and wait for its answer. Raises BrokerUnavailable, ProtocolError."""
        self.send(request, response_class, version=version)
        return self.answer(response_class)

    def send(self, request: Any, response_class: type, *, version: int | None = None) -> None:
        """Send a request, which is answered after those before. Raises BrokerUnavailable."""
        request_class: type = type(request)
        call: ApiCall[Any] = ApiCall.of(
            request_class, response_class, VERSIONS[request_class] if version is None else version
        )
        reply = PendingReply(call)
        frame = b"".join(self._protocol.send(reply, codec.encode(request, call.version)))
        try:
            self._socket.sendall(frame)
        except OSError as exc:
            raise BrokerUnavailable(f"the broker at {self.address} took no request: {exc}") from exc
        self._replies.append(reply)

    def answer(self, response_class: type[R]) -> R:
        """Wait for the answer to the first unanswered request. Raises BrokerUnavailable, ProtocolError."""
        reply: PendingReply[R] = self._replies.popleft()
        assert reply.call.response_class is response_class
        while reply.body is None:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except OSError as exc:
                raise BrokerUnavailable(f"the broker at {self.address} gave no answer: {exc}") from exc
            if not data:
                raise BrokerUnavailable(f"the broker at {self.address} closed the connection")
            try:
                self._protocol.receive_data(data)
            except ProtocolError as exc:
                raise BrokerUnavailable(str(exc)) from exc
        return reply.decode()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def _log_in(self, sasl: ClientSasl) -> None:
        steps = LoginSteps(sasl, self.address)
        request = steps.next(None)
        while request is not None:
            by_handshake = isinstance(request, SaslHandshakeRequest)
            answer: Any = self.ask(request, SaslHandshakeResponse if by_handshake else SaslAuthenticateResponse)
            request = steps.next(answer)
        if steps.session_seconds is not None:
            self._session_until = time.monotonic() + SESSION_FRACTION * steps.session_seconds


def _secured(connected: socket.socket, address: Address, context: ssl.SSLContext) -> socket.socket:
    try:
        return context.wrap_socket(connected, server_hostname=address.host)
    except ssl.SSLCertVerificationError as exc:  # which no other try would change
        raise ConfigError(
            f"the TLS handshake with {address} failed: {why_unreachable(exc)}; does ssl.truststore.location or "
            "ssl.ca.location have its authority?"
        ) from exc
    except OSError as exc:
        raise BrokerUnavailable(
            f"the TLS handshake with {address} failed: {why_unreachable(exc)}; is that a listener with TLS?"
        ) from exc


TRANSACTION: Final = 1  # of FindCoordinator's keys
REQUEST_TIMEOUT_SECONDS: Final = 30.0  # Kafka: request.timeout.ms
EARLIEST: Final = -2
LATEST: Final = -1
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
RETRY_SECONDS: Final = 120.0  # Kafka: delivery.timeout.ms; a broker restarts within it
PAUSE_SECONDS: Final = 0.1  # Kafka: retry.backoff.ms
BROKERS_DEFAULT_PORT: Final = 9092
CREATE_TIMEOUT_MS: Final = 30_000
_PORT = re.compile(r":[0-9]+/?$")


def parse_bootstrap(text: str) -> Sequence[Address]:
    """Parse `HOST:PORT,…`, as librdkafka reads `bootstrap.servers`. Raises ConfigError."""
    addresses = []
    for address in filter(None, split_list(text)):
        try:
            text_with_port = address if _PORT.search(address) else f"{address}:{BROKERS_DEFAULT_PORT}"
            addresses.append(Address.parse(text_with_port, allows_tls=True))
        except ValueError as exc:
            raise ConfigError(f"bootstrap.servers: {exc}") from exc
    if not addresses:
        raise ConfigError("bootstrap.servers names no broker: give HOST:PORT")
    return addresses


@attrs.frozen
class FoundTopic:
    topic_id: bytes
    partition_count: int


@attrs.define(eq=False, kw_only=True, repr=False)
class Cluster:
    """Holds one connection to each broker that it has asked. To be closed."""

    bootstrap: Sequence[Address]
    security: ClientSecurity = PLAINTEXT
    retry_seconds: float = RETRY_SECONDS
    _connections: dict[Address, BrokerConnection] = attrs.field(factory=dict, init=False)
    _coordinators: dict[str, Address] = attrs.field(factory=dict, init=False)
    _leaders: dict[tuple[str, int], Address] = attrs.field(factory=dict, init=False)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def patiently(self, attempt: Callable[[], T]) -> T:
        """Retry while brokers move or restart.

        Raises what the last attempt has raised: BrokerUnavailable, KafkaError.
        """
        deadline = time.monotonic() + self.retry_seconds
        while True:
            try:
                return attempt()
            except (BrokerUnavailable, KafkaError) as exc:
                if isinstance(exc, KafkaError) and exc.code not in error_codes.RETRIABLE:
                    raise
                if time.monotonic() > deadline:
                    raise
            self._coordinators.clear()
            self.forget_leaders()
            time.sleep(PAUSE_SECONDS)

    def ask(self, address: Address, request: object, response_class: type[R], *, version: int | None = None) -> R:
        """Ask one broker, once. Raises BrokerUnavailable, ProtocolError, ConfigError, KafkaError."""
        connection = self._connections.get(address)
        if connection is None or connection.is_over:
            if connection is not None:
                self._connections.pop(address).close()
            connection = BrokerConnection.open(address, REQUEST_TIMEOUT_SECONDS, security=self.security)
            self._connections[address] = connection
        try:
            return connection.ask(request, response_class, version=version)
        except BaseException:
            connection.close()
            self._connections.pop(address, None)
            raise

    def ask_any(self, request: object, response_class: type[R]) -> R:
        """Ask the first bootstrap broker that answers. Raises BrokerUnavailable, ProtocolError."""
        for address in self.bootstrap[:-1]:
            try:
                return self.ask(address, request, response_class)
            except BrokerUnavailable:
                continue
        return self.ask(self.bootstrap[-1], request, response_class)

    def coordinator(self, transactional_id: str) -> Address:
        """Return the coordinator of a transactional id. Raises BrokerUnavailable, KafkaError."""
        if transactional_id not in self._coordinators:
            request = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=[transactional_id])
            (found,) = self.ask_any(request, FindCoordinatorResponse).coordinators
            check(found.error_code, f"the coordinator of '{transactional_id}'", found.error_message)
            self._coordinators[transactional_id] = Address(found.host, found.port)
        return self._coordinators[transactional_id]

    def leader(self, topic: str, partition: int) -> Address:
        """Return the leader of a partition. Raises BrokerUnavailable, KafkaError."""
        if (topic, partition) not in self._leaders:
            self.partitions(topic)
        try:
            return self._leaders[topic, partition]
        except KeyError:
            code = error_codes.UNKNOWN_TOPIC_OR_PARTITION
            raise KafkaError(code, f"there is no partition {partition} of topic '{topic}'") from None

    def forget_leaders(self) -> None:
        self._leaders.clear()

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic. Raises BrokerUnavailable, KafkaError."""
        found = self.find(topic)
        if found is None:
            raise failure(error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{topic}'")
        return found.partition_count

    def find(self, topic: str, *, create: bool = False) -> FoundTopic | None:
        """Return a topic; None if it does not exist. Raises BrokerUnavailable, KafkaError.

        create: let brokers create it, if their config says so; it may exist a moment later.
        """
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=create)
        response = self.ask_any(request, MetadataResponse)
        nodes = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
        (found,) = response.topics
        if found.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        check(found.error_code, f"topic '{topic}'")
        for partition in found.partitions:
            if partition.leader_id not in nodes:
                raise KafkaError(
                    error_codes.LEADER_NOT_AVAILABLE, f"'{topic}' {partition.partition_index} has no leader"
                )
            self._leaders[topic, partition.partition_index] = nodes[partition.leader_id]
        return FoundTopic(found.topic_id, len(found.partitions))

    def offsets(
        self, topic: str, indexes: Iterable[int], which: int, *, isolation_level: int = READ_UNCOMMITTED
    ) -> Mapping[int, int]:
        """Return an offset of each partition: EARLIEST, LATEST, or the first of a timestamp or later, -1 without one.

        Raises BrokerUnavailable, KafkaError.
        """
        by_leader: dict[Address, list[ListOffsetsPartition]] = defaultdict(list)
        for index in indexes:
            by_leader[self.leader(topic, index)].append(ListOffsetsPartition(partition_index=index, timestamp=which))
        found: dict[int, int] = {}
        for leader, partitions in by_leader.items():
            topics = [ListOffsetsTopic(name=topic, partitions=partitions)]
            request = ListOffsetsRequest(isolation_level=isolation_level, topics=topics)
            for partition in self.ask(leader, request, ListOffsetsResponse).topics[0].partitions:
                check(partition.error_code, f"partition {partition.partition_index} of topic '{topic}'")
                found[partition.partition_index] = partition.offset
        return found

    def topics(self) -> Sequence[str]:
        """Return the names of all topics. Raises BrokerUnavailable, KafkaError."""
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        return [topic.name for topic in self.ask_any(request, MetadataResponse).topics if topic.name is not None]

    def brokers(self) -> Iterator[Address]:
        """Return all brokers. Raises BrokerUnavailable."""
        response = self.ask_any(MetadataRequest(topics=[]), MetadataResponse)
        return (Address(broker.host, broker.port) for broker in response.brokers)

    def create_compacted(self, topic: str, partition_count: int) -> None:
        """Create a topic that keeps the last record of each key, unless it exists.

        Raises BrokerUnavailable, KafkaError.
        """
        wanted = CreatableTopic(
            name=topic,
            num_partitions=partition_count,
            replication_factor=-1,
            configs=[CreatableTopicConfig(name="cleanup.policy", value="compact")],
        )
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=CREATE_TIMEOUT_MS)
        (created,) = self.ask_any(request, CreateTopicsResponse).topics
        if created.error_code != error_codes.TOPIC_ALREADY_EXISTS:
            check(created.error_code, f"creating topic '{topic}'", created.error_message)
