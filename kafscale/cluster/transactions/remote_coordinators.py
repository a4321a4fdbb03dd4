"""What a broker asks others of transactions: coordinators to enrol partitions, leaders of partitions for markers.

AddPartitionsToTxn 4 and 5    the leader of a partition, at the first batch of a transaction (KIP-890)
WriteTxnMarkers 2             the coordinator, when a transaction has been decided (KIP-98, KIP-1228)
ListTransactions 2            the leader of a partition, of what nobody seems to end, with tagged fields of our own
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import attrs

from kafscale.cluster.transactions.hanging import Knowledge
from kafscale.cluster.transactions.requests import Identity
from kafscale.cluster.transactions.state_records import end_marker
from kafscale.cluster.transactions.transaction import EPOCH_BUMP_VERSION
from kafscale.cluster.transactions.values import Marker, TopicPartition
from kafscale.concurrency.sharing import Gathering
from kafscale.errors import BrokerUnavailable, KafkaError, KafScaleError, ProtocolError
from kafscale.wire.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_TXN_STATE,
    NETWORK_EXCEPTION,
)
from kafscale.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EnrolledRequest,
    EnrolledResponse,
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
    """How another broker is asked."""

    async def __call__(self, broker_id: int, message: object, response_class: type[R]) -> R:
        """Send one request, and wait for its reply. Raises BrokerUnavailable, ProtocolError, KafkaError."""


@attrs.define(eq=False, kw_only=True, repr=False)
class Elsewhere:
    """The other brokers, as far as transactions go.

    `leader` is the id of the broker that leads a partition, None if nobody does just now. `coordinated_at` is the
    partition of `__transaction_state` that has an id. What is for one broker is one request at a time of each kind,
    with all that has come meanwhile, as whoever answers waits for its log.
    """

    ask: AskBroker
    leader: Callable[[TopicPartition], int | None]
    coordinated_at: Callable[[str], TopicPartition]
    _enrolling: dict[int, Gathering[AddPartitionsToTxnTransaction, Errors]] = attrs.field(factory=dict, init=False)
    _marking: dict[int, Gathering[Sequence[Marker], Errors]] = attrs.field(factory=dict, init=False)
    _in_vain: set[int] = attrs.field(factory=set, init=False)  # brokers that were asked so last; it is said once

    async def enrol(
        self, identity: Identity, partitions: Collection[TopicPartition], *, transaction_version: int
    ) -> Errors:
        """Have a producer's coordinator enrol partitions, durably, or below version 2 say whether they are.

        Returns an error code for each.
        """
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
            self._note_in_vain(coordinator, exc)
            return dict.fromkeys(partitions, NETWORK_EXCEPTION)
        self._in_vain.discard(coordinator)
        return {each: codes.get(each, NETWORK_EXCEPTION) for each in partitions}

    async def _enrol_at(self, broker_id: int, wanted: Sequence[AddPartitionsToTxnTransaction]) -> Sequence[Errors]:
        request = AddPartitionsToTxnRequest(transactions=list(wanted))
        response = await self.ask(broker_id, request, AddPartitionsToTxnResponse)
        if response.error_code == CLUSTER_AUTHORIZATION_FAILED:  # as Kafka: which is no affair of the client's
            logger.error("broker %d refuses to enrol partitions: this one needs ClusterAction there", broker_id)
            raise KafkaError(INVALID_TXN_STATE)
        if response.error_code:
            raise KafkaError(response.error_code)
        answers = response.results_by_transaction
        if [each.transactional_id for each in answers] != [each.transactional_id for each in wanted]:
            raise ProtocolError(f"broker {broker_id} did not answer for each transaction")
        return [
            {
                TopicPartition(topic.name, each.partition_index): each.partition_error_code
                for topic in answer.topic_results
                for each in topic.results_by_partition
            }
            for answer in answers
        ]

    async def write_markers(self, broker_id: int, markers: Sequence[Marker]) -> Errors:
        """Have a broker write a transaction's markers into partitions that it leads, durably. Returns error codes."""
        if broker_id not in self._marking:
            self._marking[broker_id] = Gathering(partial(self._mark_at, broker_id), AT_ONCE_COUNT)
        try:
            errors = await self._marking[broker_id].request(markers, _interrupted(broker_id))
        except KafScaleError as exc:
            self._note_in_vain(broker_id, exc)
            return {}
        self._in_vain.discard(broker_id)
        return errors

    async def _mark_at(self, broker_id: int, wanted: Sequence[Sequence[Marker]]) -> Sequence[Errors]:
        request = WriteTxnMarkersRequest(markers=list(map(_writable, wanted)))
        response = await self.ask(broker_id, request, WriteTxnMarkersResponse)
        answers = response.markers
        if [each.producer_id for each in answers] != [each.producer_id for each in request.markers]:
            raise ProtocolError(f"broker {broker_id} did not answer for each transaction")
        return [
            {
                TopicPartition(topic.name, each.partition_index): each.error_code
                for topic in answer.topics
                for each in topic.partitions
            }
            for answer in answers
        ]

    async def known(self, broker_id: int, producer_ids: Collection[int]) -> Knowledge:
        """Return what is coordinated at another broker of these producers.

        Raises BrokerUnavailable, ProtocolError, KafkaError.
        """
        request = EnrolledRequest(producer_id_filters=sorted(producer_ids), wants_enrolled=True)
        response = await self.ask(broker_id, request, EnrolledResponse)
        if response.error_code:
            raise KafkaError(response.error_code)
        return Knowledge(
            epochs={each.partition_index: each.leader_epoch for each in response.coordinated},
            enrolled={
                (producer.producer_id, TopicPartition(topic.name, index)): producer.producer_epoch
                for producer in response.enrolled
                for topic in producer.topics
                for index in topic.partitions
            },
        )

    def _note_in_vain(self, broker_id: int, exc: KafScaleError) -> None:
        """Log it the first time: it is tried again all the time, for as long as the broker is away."""
        level = logging.DEBUG if broker_id in self._in_vain else logging.WARNING
        self._in_vain.add(broker_id)
        logger.log(level, "broker %d was asked in vain to enrol partitions or write markers: %s", broker_id, exc)


def _interrupted(broker_id: int) -> BrokerUnavailable:
    return BrokerUnavailable(f"who asked broker {broker_id} for all of them has gone")


def _writable(markers: Sequence[Marker]) -> WritableTxnMarker:
    """Return the markers of one transaction, as they are sent."""
    end = end_marker(markers[0])
    return WritableTxnMarker(
        producer_id=end.producer_id,
        producer_epoch=end.producer_epoch,
        transaction_result=end.is_commit,
        coordinator_epoch=end.coordinator_epoch,
        transaction_version=end.transaction_version,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
            for name, indexes in _by_topic(each.partition for each in markers).items()
        ],
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in partitions:
        found.setdefault(each.topic, []).append(each.partition)
    return found
