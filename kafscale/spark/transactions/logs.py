"""Stored batches of a partition, of any transaction, and the outcome of a transaction.

A coordinator forgets how the last transaction of an id ended when the id is initialised again. The partitions keep it:
the first marker of a producer behind one of its batches ends the transaction of that batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from kafscale.errors import KafkaError
from kafscale.login.failures import check
from kafscale.spark.brokers.cluster import Cluster
from kafscale.wire import error_codes
from kafscale.wire.batch_header import BatchHeader, parse_header, whole_batches
from kafscale.wire.control_records import parse_marker
from kafscale.wire.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionData,
)

EARLIEST: Final = -2
LATEST: Final = -1
FETCH_BYTES: Final = 8 << 20
FETCH_WAIT_MS: Final = 500


@attrs.frozen(eq=False, repr=False)
class StoredBatch:
    header: BatchHeader
    data: memoryview

    @classmethod
    def of(cls, data: memoryview) -> StoredBatch:
        """Read the header. Raises CorruptBatch."""
        return cls(parse_header(data), data)

    @property
    def outcome(self) -> bool | None:
        """Tell whether it is the marker of a commit or of an abort; None for another batch. Raises CorruptBatch."""
        if not self.header.is_control:
            return None
        marker = parse_marker(self.data, self.header)
        return None if marker is None else marker.is_commit


@attrs.frozen(kw_only=True)
class UnfilteredPartition:
    """A partition, read without regard to transactions. Every method raises BrokerUnavailable, KafkaError."""

    cluster: Cluster
    topic: str
    partition: int

    def end(self) -> int:
        """Return the high watermark."""
        return self._offset(LATEST)

    def start(self) -> int:
        return self._offset(EARLIEST)

    def batches(self, first: int, end: int) -> Iterator[StoredBatch]:
        """Iterate over the batches with offsets from `first` to `end`, exclusive. Deleted ones are left out."""
        position = first
        while position < end:
            answer = self.cluster.patiently(lambda at=position: self._fetch(at))  # type: ignore[misc]
            if answer.error_code == error_codes.OFFSET_OUT_OF_RANGE:
                position = self._after_deletion(position)
                continue
            batch = None
            for batch in map(StoredBatch.of, whole_batches(_records_of(answer))):
                if batch.header.base_offset >= end:
                    return
                yield batch
                position = batch.header.next_offset
            if batch is None and position >= answer.high_watermark:
                return  # nothing is left there: compaction has taken what was

    def outcome_of(self, producer_id: int, first: int) -> bool | None:
        """Tell whether the transaction of the producer's record at this offset was committed; None while it is open."""
        for batch in self.batches(first, self.end()):
            if batch.header.producer_id == producer_id and (outcome := batch.outcome) is not None:
                return outcome
        return None

    def _after_deletion(self, position: int) -> int:
        start = self.start()
        if start <= position:
            raise KafkaError(
                error_codes.OFFSET_OUT_OF_RANGE, f"'{self.topic}' {self.partition} does not have offset {position}"
            )
        return start

    def _fetch(self, offset: int) -> PartitionData:
        wanted = FetchPartition(partition=self.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        topics = [FetchTopic(topic=self.topic, partitions=[wanted])]
        request = FetchRequest(max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES, topics=topics)
        leader = self.cluster.leader(self.topic, self.partition)
        response = self.cluster.ask(leader, request, FetchResponse)
        check(response.error_code, f"topic '{self.topic}'")
        answer = response.responses[0].partitions[0]
        if answer.error_code != error_codes.OFFSET_OUT_OF_RANGE:
            check(answer.error_code, f"offset {offset} of '{self.topic}' {self.partition}")
        return answer

    def _offset(self, which: int) -> int:
        def ask() -> int:
            partitions = [ListOffsetsPartition(partition_index=self.partition, timestamp=which)]
            request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=self.topic, partitions=partitions)])
            response = self.cluster.ask(self.cluster.leader(self.topic, self.partition), request, ListOffsetsResponse)
            answer = response.topics[0].partitions[0]
            check(answer.error_code, f"'{self.topic}' {self.partition}")
            return answer.offset

        return self.cluster.patiently(ask)


def _records_of(answer: PartitionData) -> memoryview:
    return memoryview(answer.records or b"")  # type: ignore[arg-type] # decoded: one buffer
