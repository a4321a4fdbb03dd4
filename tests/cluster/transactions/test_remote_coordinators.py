"""What a broker asks others of transactions, where they do not answer."""

from __future__ import annotations

import logging
from typing import TypeVar

import attrs
import pytest

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.remote_coordinators import no_peers
from kafscale.cluster.transactions.values import Marker
from kafscale.errors import BrokerUnavailable
from kafscale.wire.error_codes import NONE
from kafscale.wire.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

R = TypeVar("R")
AT = TopicPartition("orders", 0)
MARKER = Marker(
    partition=AT, producer_id=7, producer_epoch=1, coordinator_epoch=3, committed=True, transaction_version=2
)


@attrs.define
class OtherBroker:
    is_there: bool = False

    async def ask(self, broker_id: int, message: object, response_class: type[R]) -> R:
        if not self.is_there:
            raise BrokerUnavailable(f"broker {broker_id} is away")
        assert isinstance(message, WriteTxnMarkersRequest)
        partition = WritableTxnMarkerPartitionResult(partition_index=0, error_code=NONE)
        topic = WritableTxnMarkerTopicResult(name=AT.topic, partitions=[partition])
        result = WritableTxnMarkerResult(producer_id=MARKER.producer_id, topics=[topic])
        response = WriteTxnMarkersResponse(markers=[result])
        assert isinstance(response, response_class)
        return response


async def test_an_unavailable_broker_is_logged_once_per_outage(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    other = OtherBroker()
    remote = attrs.evolve(no_peers(), ask=other.ask, leader=lambda _at: 2, coordinated_at=lambda _id: AT)
    for _ in range(3):
        assert await remote.write_markers(2, [MARKER]) == {}
    assert caplog.messages == ["broker 2 did not enrol partitions or write markers, asking again: broker 2 is away"]
    other.is_there = True
    assert await remote.write_markers(2, [MARKER]) == {AT: NONE}
    other.is_there = False
    await remote.write_markers(2, [MARKER])
    assert len(caplog.messages) == 2
