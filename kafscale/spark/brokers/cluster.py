"""The brokers of a cluster: leaders and coordinators, asked again while they move or restart."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import attrs

from kafscale.config import Address, split_list
from kafscale.errors import BrokerUnavailable, ConfigError, KafkaError
from kafscale.login.failures import check, failure
from kafscale.login.security import PLAINTEXT, ClientSecurity
from kafscale.spark.brokers.connection import BrokerConnection
from kafscale.wire import error_codes
from kafscale.wire.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

TRANSACTION: Final = 1  # of FindCoordinator's keys
REQUEST_TIMEOUT_SECONDS: Final = 30.0  # Kafka: request.timeout.ms
RETRY_SECONDS: Final = 120.0  # Kafka: delivery.timeout.ms; a broker restarts within it
PAUSE_SECONDS: Final = 0.1  # Kafka: retry.backoff.ms
BROKERS_DEFAULT_PORT: Final = 9092
CREATE_TIMEOUT_MS: Final = 30_000
_PORT = re.compile(r":[0-9]+/?$")
R = TypeVar("R")
T = TypeVar("T")


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
