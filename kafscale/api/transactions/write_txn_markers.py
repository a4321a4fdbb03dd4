"""WriteTxnMarkers (27): write the ends of transactions into partitions of this broker.

v2  the transaction's version, which shows that a marker is late (KIP-1228)

Coordinators on other brokers send it, and `kafka-transactions.sh abort` for a hanging transaction (KIP-664), without
its coordinator.
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import led_partition
from kafscale.api.handling.services import Services
from kafscale.cluster.coordinator.entries import Appended, EndEntry
from kafscale.cluster.transactions.values import now_ms
from kafscale.concurrency.turns import Turns
from kafscale.errors import KafkaError, StorageFailed
from kafscale.wire.control_records import EndMarker
from kafscale.wire.error_codes import KAFKA_STORAGE_ERROR
from kafscale.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


async def handle(services: Services, call: Call, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    waiting: list[tuple[Appended, WritableTxnMarkerPartitionResult]] = []
    turns = Turns()
    results = []
    for marker in request.markers:
        await turns.step()
        result = WritableTxnMarkerResult(producer_id=marker.producer_id)
        results.append(result)
        for topic in marker.topics:
            await turns.step()
            of_topic = WritableTxnMarkerTopicResult(name=topic.name)
            result.topics.append(of_topic)
            for index in topic.partition_indexes:
                await turns.step()
                answer = WritableTxnMarkerPartitionResult(partition_index=index)
                of_topic.partitions.append(answer)
                try:
                    waiting.append((await _append(services, marker, topic.name, index), answer))
                except KafkaError as exc:
                    answer.error_code = exc.code
    for appended, answer in waiting:
        try:
            await appended.wait()
        except StorageFailed:
            answer.error_code = KAFKA_STORAGE_ERROR
    return WriteTxnMarkersResponse(markers=results)


async def _append(services: Services, marker: WritableTxnMarker, topic: str, index: int) -> Appended:
    partition = led_partition(services, topic, index)
    end = EndMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        is_commit=marker.transaction_result,
        transaction_version=marker.transaction_version,
    )
    try:
        return await services.internal.append([EndEntry(partition, end)], now_ms())
    except StorageFailed as exc:
        raise KafkaError(KAFKA_STORAGE_ERROR, str(exc)) from exc


API = Api(27, "WriteTxnMarkers", 1, 2, WriteTxnMarkersRequest, WriteTxnMarkersResponse, handle)
