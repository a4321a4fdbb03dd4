"""Requests about transactions to other brokers.

AddPartitionsToTxn 4 and 5    from the leader of a partition, at the first batch of a transaction (KIP-890)
WriteTxnMarkers 2             from the coordinator, when a transaction has been decided (KIP-98, KIP-1228)
BrokerHeartbeat               from the leader of a partition with a transaction that may hang, in fields of our own
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.hanging import Knowledge
from kafscale.cluster.transactions.ledger import ProducerIdentity
from kafscale.cluster.transactions.transaction import EPOCH_BUMP_VERSION
from kafscale.cluster.transactions.values import Marker, end_marker
from kafscale.concurrency.sharing import Gathering
from kafscale.errors import BrokerUnavailable, KafkaError, KafScaleError, ProtocolError
from kafscale.wire.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_TXN_STATE,
    NETWORK_EXCEPTION,
)
from kafscale.wire.messages.brokers import OwnHeartbeatRequest, OwnHeartbeatResponse
from kafscale.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

logger = logging.getLogger(__name__)

AT_ONCE_COUNT = 500  # transactions of one request

R = TypeVar("R")
Errors = Mapping[TopicPartition, int]


class AskBroker(Protocol):
    async def __call__(self, broker_id: int, message: object, response_class: type[R]) -> R:
        """Send one request, and wait for its reply. Raises BrokerUnavailable, ProtocolError, KafkaError."""


@attrs.define(eq=False, kw_only=True, repr=False)
class RemoteCoordinators:
    """Coordinators and leaders on other brokers.

    `leader` returns the id of the other broker that leads a partition, or None. `coordinated_at` returns the partition
    of `__transaction_state` of an id. `heartbeat` makes a heartbeat of this broker. A broker gets one request of each
    kind at a time, for everything that came meanwhile, as it answers only when its log is durable.
    """

    ask: AskBroker
    leader: Callable[[TopicPartition], int | None]
    coordinated_at: Callable[[str], TopicPartition]
    heartbeat: Callable[[], OwnHeartbeatRequest]
    has_peers: bool = True
    _enrolling: dict[int, Gathering[AddPartitionsToTxnTransaction, Errors]] = attrs.field(factory=dict, init=False)
    _marking: dict[int, Gathering[Sequence[Marker], Errors]] = attrs.field(factory=dict, init=False)
    _unavailable: set[int] = attrs.field(factory=set, init=False)  # brokers whose last request failed

    async def enrol(
        self, identity: ProducerIdentity, partitions: Collection[TopicPartition], *, transaction_version: int
    ) -> Errors:
        """Enrol partitions durably at a producer's coordinator; below version 2 only verify. Returns error codes."""
        coordinator = self.leader(self.coordinated_at(identity.transactional_id))
        if coordinator is None:
            return dict.fromkeys(partitions, COORDINATOR_NOT_AVAILABLE)
        wanted = AddPartitionsToTxnTransaction(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            verify_only=transaction_version < EPOCH_BUMP_VERSION,
            topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in _by_topic(partitions).items()
            ],
        )
        if coordinator not in self._enrolling:
            self._enrolling[coordinator] = Gathering(partial(self._enrol_at, coordinator), AT_ONCE_COUNT)
        try:
            codes = await self._enrolling[coordinator].request(wanted, _interrupted(coordinator))
        except KafkaError as exc:
            return dict.fromkeys(partitions, exc.code)
        except KafScaleError as exc:
            self._note_failure(coordinator, exc)
            return dict.fromkeys(partitions, NETWORK_EXCEPTION)
        self._unavailable.discard(coordinator)
        return {at: codes.get(at, NETWORK_EXCEPTION) for at in partitions}

    async def _enrol_at(self, broker_id: int, wanted: Sequence[AddPartitionsToTxnTransaction]) -> Sequence[Errors]:
        request = AddPartitionsToTxnRequest(transactions=list(wanted))
        response = await self.ask(broker_id, request, AddPartitionsToTxnResponse)
        if response.error_code == CLUSTER_AUTHORIZATION_FAILED:  # as in Kafka: the client can do nothing
            logger.error("broker %d refuses to enrol partitions: this one needs ClusterAction there", broker_id)
            raise KafkaError(INVALID_TXN_STATE)
        if response.error_code:
            raise KafkaError(response.error_code)
        answers = response.results_by_transaction
        if [answer.transactional_id for answer in answers] != [one.transactional_id for one in wanted]:
            raise ProtocolError(f"broker {broker_id} did not answer for each transaction")
        return [
            {
                TopicPartition(topic.name, result.partition_index): result.partition_error_code
                for topic in answer.topic_results
                for result in topic.results_by_partition
            }
            for answer in answers
        ]

    async def write_markers(self, broker_id: int, markers: Sequence[Marker]) -> Errors:
        """Write a transaction's markers durably into partitions of another broker. Returns error codes."""
        if broker_id not in self._marking:
            self._marking[broker_id] = Gathering(partial(self._mark_at, broker_id), AT_ONCE_COUNT)
        try:
            errors = await self._marking[broker_id].request(markers, _interrupted(broker_id))
        except KafScaleError as exc:
            self._note_failure(broker_id, exc)
            return {}
        self._unavailable.discard(broker_id)
        return errors

    async def _mark_at(self, broker_id: int, wanted: Sequence[Sequence[Marker]]) -> Sequence[Errors]:
        request = WriteTxnMarkersRequest(markers=list(map(_writable, wanted)))
        response = await self.ask(broker_id, request, WriteTxnMarkersResponse)
        answers = response.markers
        if [answer.producer_id for answer in answers] != [marker.producer_id for marker in request.markers]:
            raise ProtocolError(f"broker {broker_id} did not answer for each transaction")
        return [
            {
                TopicPartition(topic.name, partition.partition_index): partition.error_code
                for topic in answer.topics
                for partition in topic.partitions
            }
            for answer in answers
        ]

    async def known(self, broker_id: int, producer_ids: Collection[int]) -> Knowledge:
        """Return what producers have enrolled there. Raises BrokerUnavailable, ProtocolError, KafkaError."""
        request = self.heartbeat().evolve(producer_ids=sorted(producer_ids))
        response = await self.ask(broker_id, request, OwnHeartbeatResponse)
        if response.error_code:
            raise KafkaError(response.error_code)
        return Knowledge(
            epochs={partition.partition_index: partition.leader_epoch for partition in response.coordinated},
            enrolled={
                (producer.producer_id, TopicPartition(topic.name, index)): producer.producer_epoch
                for producer in response.enrolled
                for topic in producer.topics
                for index in topic.partitions
            },
        )

    def _note_failure(self, broker_id: int, exc: KafScaleError) -> None:
        """Log the first failure as a warning: requests are repeated until the broker answers."""
        level = logging.DEBUG if broker_id in self._unavailable else logging.WARNING
        self._unavailable.add(broker_id)
        logger.log(level, "broker %d did not enrol partitions or write markers, asking again: %s", broker_id, exc)


def no_peers() -> RemoteCoordinators:
    """Return the remote coordinators of a lone broker."""

    async def ask(broker_id: int, message: object, response_class: type[R]) -> R:
        raise BrokerUnavailable(f"there is no broker {broker_id}")

    def heartbeat() -> OwnHeartbeatRequest:
        raise BrokerUnavailable("there are no other brokers")

    return RemoteCoordinators(
        ask=ask,
        leader=lambda at: None,
        coordinated_at=lambda transactional_id: TopicPartition("", 0),
        heartbeat=heartbeat,
        has_peers=False,
    )


def _interrupted(broker_id: int) -> BrokerUnavailable:
    return BrokerUnavailable(f"the request that also asked broker {broker_id} for this one was cancelled")


def _writable(markers: Sequence[Marker]) -> WritableTxnMarker:
    end = end_marker(markers[0])
    return WritableTxnMarker(
        producer_id=end.producer_id,
        producer_epoch=end.producer_epoch,
        transaction_result=end.is_commit,
        coordinator_epoch=end.coordinator_epoch,
        transaction_version=end.transaction_version,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
            for name, indexes in _by_topic(marker.partition for marker in markers).items()
        ],
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for at in partitions:
        found.setdefault(at.topic, []).append(at.partition)
    return found
