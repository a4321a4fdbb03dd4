"""DescribeProducers (61, KIP-664): recent producers of partitions, and their open transactions.

v0  (flexible) by topics and partitions

A partition remembers idempotent and transactional producers, with the sequence number of the last record of each,
durable or not, and its time by the broker's clock. `kafka-transactions.sh find-hanging` looks here for transactions
that never end. A producer that is only known by a transaction has no last sequence and timestamp.
"""

from __future__ import annotations

from functools import partial

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import led_partition
from kafscale.api.handling.services import Services
from kafscale.cluster.registries.topic_names import check_topic_name
from kafscale.concurrency.turns import distinct_partitions
from kafscale.errors import KafkaError
from kafscale.formats.transactions import OpenTransaction, Producer
from kafscale.log.partition.partition import Partition
from kafscale.wire.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from kafscale.wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kafscale.wire.schema import mapped

UNKNOWN = -1  # or none


async def handle(services: Services, call: Call, request: DescribeProducersRequest) -> DescribeProducersResponse:
    asked = await distinct_partitions(((topic.name, topic.partition_indexes) for topic in request.topics), int)

    def described(name: str) -> TopicResponse:
        return TopicResponse(name=name, partitions=mapped(partial(_partition, services, name), asked[name]))

    return DescribeProducersResponse(topics=mapped(described, asked))


def _partition(services: Services, name: str, index: int) -> PartitionResponse:
    answer = PartitionResponse(partition_index=index)
    try:
        check_topic_name(name)
        answer.active_producers = _producers(led_partition(services, name, index))
    except KafkaError as exc:
        answer.error_code, answer.error_message = exc.code, exc.message
        if exc.code == UNKNOWN_TOPIC_OR_PARTITION:
            answer.error_message = "This server does not host this topic-partition."
    return answer


def _producers(partition: Partition) -> list[ProducerState]:
    """Return the producers that have written. A producer whose batches were all refused is remembered, too."""
    transactions = partition.transactions.open
    known = {
        producer.producer_id: producer for producer in partition.producers.producers.values() if _has_written(producer)
    }
    for transaction in transactions.values():
        if transaction.producer_id not in known:
            known[transaction.producer_id] = Producer(
                transaction.producer_id, transaction.epoch, [], UNKNOWN, coordinator_epoch=transaction.coordinator_epoch
            )
    return mapped(_state, [(producer, transactions.get(producer.producer_id)) for producer in known.values()])


def _has_written(producer: Producer) -> bool:
    return bool(producer.batches) or producer.due_sequence is None


def _state(of: tuple[Producer, OpenTransaction | None]) -> ProducerState:
    producer, transaction = of
    return ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.batches[-1].last_sequence if producer.batches else UNKNOWN,
        last_timestamp=producer.last_timestamp_ms,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=UNKNOWN if transaction is None else transaction.first_offset,
    )


API = Api(61, "DescribeProducers", 0, 0, DescribeProducersRequest, DescribeProducersResponse, handle)
