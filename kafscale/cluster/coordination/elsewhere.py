"""What a broker asks others of transactions: coordinators to enrol partitions, leaders of partitions for markers.

AddPartitionsToTxn 4 and 5    the leader of a partition, at the first batch of a transaction (KIP-890)
WriteTxnMarkers 1             the coordinator, when a transaction has been decided (KIP-98)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol, TypeVar

import attrs

from kafscale.cluster.coordination.state_records import end_marker
from kafscale.cluster.transactions.requests import Identity
from kafscale.cluster.transactions.transaction import EPOCH_BUMP_VERSION
from kafscale.cluster.transactions.values import Marker, TopicPartition
from kafscale.errors import BrokerUnavailable, KafkaError, ProtocolError
from kafscale.wire.control_records import EndMarker
from kafscale.wire.error_codes import COORDINATOR_NOT_AVAILABLE, NETWORK_EXCEPTION
from kafscale.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kafscale.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

logger = logging.getLogger(__name__)

R = TypeVar("R")


class AskBroker(Protocol):
    """How another broker is asked."""

    async def __call__(self, broker_id: int, message: object, response_class: type[R]) -> R:
        """Send one request, and wait for its reply. Raises BrokerUnavailable, ProtocolError, KafkaError."""


@attrs.frozen(eq=False, kw_only=True, repr=False)
class Elsewhere:
    """The other brokers, as far as transactions go.

    `leader` is the id of the broker that leads a partition, None if nobody does just now. `coordinated_at` is the
    partition of `__transaction_state` that has an id.
    """

    ask: AskBroker
    leader: Callable[[TopicPartition], int | None]
    coordinated_at: Callable[[str], TopicPartition]

    async def enrol(
        self, identity: Identity, partitions: Collection[TopicPartition], *, transaction_version: int
    ) -> Mapping[TopicPartition, int]:
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
        try:
            response = await self.ask(
                coordinator, AddPartitionsToTxnRequest(transactions=[wanted]), AddPartitionsToTxnResponse
            )
        except (BrokerUnavailable, ProtocolError, KafkaError) as exc:
            logger.warning("broker %d, which coordinates %s, was not asked: %s", coordinator, identity, exc)
            return dict.fromkeys(partitions, NETWORK_EXCEPTION)
        if response.error_code:
            logger.warning("broker %d refuses to enrol partitions: this one needs ClusterAction there", coordinator)
            return dict.fromkeys(partitions, NETWORK_EXCEPTION)
        codes = {
            TopicPartition(topic.name, each.partition_index): each.partition_error_code
            for result in response.results_by_transaction
            for topic in result.topic_results
            for each in topic.results_by_partition
        }
        return {each: codes.get(each, NETWORK_EXCEPTION) for each in partitions}

    async def write_markers(self, broker_id: int, markers: Iterable[Marker]) -> Mapping[TopicPartition, int]:
        """Have a broker write markers into partitions that it leads, durably. Returns error codes."""
        by_end: dict[EndMarker, list[TopicPartition]] = {}
        for each in markers:
            by_end.setdefault(end_marker(each), []).append(each.partition)
        request = WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=end.producer_id,
                    producer_epoch=end.producer_epoch,
                    transaction_result=end.is_commit,
                    coordinator_epoch=end.coordinator_epoch,
                    topics=[
                        WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                        for name, indexes in _by_topic(partitions).items()
                    ],
                )
                for end, partitions in by_end.items()
            ]
        )
        try:
            response = await self.ask(broker_id, request, WriteTxnMarkersResponse)
        except (BrokerUnavailable, ProtocolError, KafkaError) as exc:
            logger.warning("broker %d may not have written markers: %s", broker_id, exc)
            return {}
        return {
            TopicPartition(topic.name, each.partition_index): each.error_code
            for result in response.markers
            for topic in result.topics
            for each in topic.partitions
        }


def _by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in partitions:
        found.setdefault(each.topic, []).append(each.partition)
    return found
