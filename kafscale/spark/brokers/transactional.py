"""Requests of a transactional producer besides Produce: to begin, to enrol partitions, and to end (KIP-98)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from kafscale.login.failures import check
from kafscale.spark.brokers.cluster import Cluster
from kafscale.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)


def initialise(cluster: Cluster, transactional_id: str, timeout_ms: int) -> tuple[int, int]:
    """Fence the former owner of the id, end its transaction, and return the producer's id and epoch.

    Raises BrokerUnavailable, KafkaError.
    """

    def ask() -> tuple[int, int]:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        response = cluster.ask(cluster.coordinator(transactional_id), request, InitProducerIdResponse)
        check(response.error_code, f"transactional id '{transactional_id}'")
        return response.producer_id, response.producer_epoch

    return cluster.patiently(ask)


def enrol(
    cluster: Cluster, transactional_id: str, producer: tuple[int, int], places: Iterable[tuple[str, int]]
) -> None:
    """Add partitions to the transaction, which the first ones begin. Raises BrokerUnavailable, KafkaError."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in places:
        by_topic[topic].append(partition)
    request = AddPartitionsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[AddPartitionsToTxnTopic(name=topic, partitions=found) for topic, found in by_topic.items()],
    )

    def ask() -> None:
        response = cluster.ask(cluster.coordinator(transactional_id), request, AddPartitionsToTxnResponse)
        for topic in response.results_by_topic:
            for result in topic.results_by_partition:
                about = f"transactional id '{transactional_id}' in '{topic.name}' {result.partition_index}"
                check(result.partition_error_code, about)

    cluster.patiently(ask)


def end(cluster: Cluster, transactional_id: str, producer: tuple[int, int], *, committed: bool) -> None:
    """End a transaction, or find that it was ended so already.

    Raises BrokerUnavailable, KafkaError: of an id or epoch that is fenced, or a transaction that ended otherwise.
    """

    def ask() -> None:
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=committed,
        )
        response = cluster.ask(cluster.coordinator(transactional_id), request, EndTxnResponse)
        check(response.error_code, f"transactional id '{transactional_id}'")

    cluster.patiently(ask)
