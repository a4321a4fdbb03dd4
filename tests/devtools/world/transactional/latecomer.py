"""Markers that come too late, as if a former coordinator had sent them and the network had delayed them.

Their producer epoch, or coordinator epoch, is lower than the partition's. Each must be refused: it would end a present
transaction by an earlier decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from kafscale.client.connection import Connection
from kafscale.client.consumer import EARLIEST
from kafscale.wire import error_codes
from kafscale.wire.batch_header import parse_header
from kafscale.wire.control_records import EndMarker, parse_marker
from kafscale.wire.messages.records import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kafscale.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.devtools.world.workload import FETCH_MAX_BYTES, Repeating, Topic, batches_of, offset_at, was_done

_REFUSED = frozenset({error_codes.INVALID_PRODUCER_EPOCH, error_codes.TRANSACTION_COORDINATOR_FENCED})


@attrs.frozen
class _Newest:
    producer: int = -1
    coordinator: int = -1


@attrs.define(eq=False)
class _Looked:
    offset: int = 0
    newest: dict[int, _Newest] = attrs.field(factory=dict, init=False)

    def take(self, batch: memoryview) -> None:
        header = parse_header(batch)
        self.offset = header.last_offset + 1
        if not header.is_transactional:
            return
        known = self.newest.get(header.producer_id, _Newest())
        marker = parse_marker(batch, header) if header.is_control else None
        self.newest[header.producer_id] = _Newest(
            max(known.producer, header.producer_epoch),
            known.coordinator if marker is None else max(known.coordinator, marker.coordinator_epoch),
        )

    def outdated(self, *, is_commit: bool) -> Iterator[EndMarker]:
        """Return all markers that are late by one epoch."""
        for producer_id, newest in self.newest.items():
            for producer, coordinator in (
                (newest.producer - 1, newest.coordinator),
                (newest.producer, newest.coordinator - 1),
            ):
                if producer >= 0 and coordinator >= 0:
                    yield EndMarker(
                        producer_id=producer_id,
                        producer_epoch=producer,
                        coordinator_epoch=coordinator,
                        is_commit=is_commit,
                    )


@attrs.define(eq=False, kw_only=True)
class Latecomer(Repeating):
    """Reads the epochs of partitions, and sends markers of earlier ones. `faults` are the accepted ones."""

    topics: Sequence[Topic]
    faults: list[str]
    refused_count: int = attrs.field(default=0, init=False)
    _looked: dict[tuple[str, int], _Looked] = attrs.field(factory=dict, init=False)

    async def _step(self, connection: Connection) -> None:
        topic = self.random.choice(self.topics)
        index = self.random.randrange(topic.partition_count)
        looked = self._looked.setdefault((topic.name, index), _Looked())
        await self._look(connection, topic, index, looked)
        outdated = list(looked.outdated(is_commit=self.random.random() < 0.5))
        if outdated:
            await self._send(connection, topic, index, self.random.choice(outdated))

    async def _look(self, connection: Connection, topic: Topic, index: int, looked: _Looked) -> None:
        wanted = FetchPartition(partition=index, fetch_offset=looked.offset, partition_max_bytes=FETCH_MAX_BYTES)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=FETCH_MAX_BYTES,
            topics=[FetchTopic(topic=topic.name, topic_id=topic.topic_id, partitions=[wanted])],
        )
        (answer,) = (await connection.request(request, FetchResponse)).responses[0].partitions
        if answer.error_code == error_codes.OFFSET_OUT_OF_RANGE:
            start_offset = await offset_at(connection, topic, index, EARLIEST)
            looked.offset = looked.offset if start_offset is None else start_offset
        elif was_done(answer.error_code, topic.partition_name(index)):
            for batch in batches_of(answer):
                looked.take(batch)

    async def _send(self, connection: Connection, topic: Topic, index: int, marker: EndMarker) -> None:
        wanted = WritableTxnMarker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            transaction_result=marker.is_commit,
            topics=[WritableTxnMarkerTopic(name=topic.name, partition_indexes=[index])],
            coordinator_epoch=marker.coordinator_epoch,
        )
        response = await connection.request(WriteTxnMarkersRequest(markers=[wanted]), WriteTxnMarkersResponse)
        error_code = response.markers[0].topics[0].partitions[0].error_code
        where = topic.partition_name(index)
        if error_code in _REFUSED:
            self.refused_count += 1
        elif was_done(error_code, f"a late marker in {where}"):
            self.faults.append(f"{marker}, which comes too late, was taken in {where}")
