"""Records to batches to partitions.

A record with a key goes to the partition of Kafka's clients (murmur2 of the key); the keyless records of one call go to
one partition, those of the next call to the next. Errors after which nothing was written are retried; a lost connection
is not, as the records may have been written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from kafscale.client.client import Client
from kafscale.client.retrying import STALE_LEADER, WORTH_ANOTHER, Attempts
from kafscale.login.failures import check
from kafscale.wire import codec as wire_codec
from kafscale.wire import compression
from kafscale.wire.client_rules import partition_of
from kafscale.wire.messages.records import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.records import Record, build_batch

MAX_BATCH_BYTES = 900_000  # before compression; Kafka: batch.size, 16 KiB, but max.message.bytes allows 1 MiB
RECORD_OVERHEAD_BYTES = 32  # lengths and deltas of one record, at most
TIMEOUT_MS = 30_000
ALL = -1


@attrs.define(eq=False, kw_only=True, repr=False)
class Producer:
    """Writes to one topic. `acks` is 0 (no answer), 1 or ALL; `codec` is of `kafscale.wire.compression`."""

    client: Client
    topic: str
    acks: int = ALL
    codec: int = compression.NONE
    _next_keyless: int = attrs.field(default=0, init=False)

    async def send(self, records: Sequence[Record], *, partition: int | None = None) -> dict[int, int]:
        """Write records in order, and wait until they are acknowledged. Raises KafkaError, BrokerUnavailable.

        Return the first offset in each partition, -1 with acks=0.
        """
        found = await self.client.topic(self.topic, create=True)
        offsets: dict[int, int] = {}
        for index, chosen in self._by_partition(records, len(found.leaders), partition).items():
            for batch in split(chosen):
                offset = await self.send_batch(index, build_batch(batch, codec=self.codec))
                offsets.setdefault(index, offset)
        return offsets

    async def send_batch(self, partition: int, batch: bytearray) -> int:
        """Write an encoded batch and return its first offset, -1 with acks=0. Raises KafkaError, BrokerUnavailable."""
        data = PartitionProduceData(index=partition, records=memoryview(batch))
        topic_data = [TopicProduceData(name=self.topic, partition_data=[data])]
        request = ProduceRequest(acks=self.acks, timeout_ms=TIMEOUT_MS, topic_data=topic_data)
        attempts = Attempts()
        while True:
            leader = await self.client.leader(self.topic, partition)
            if self.acks == 0:
                call = leader.call(ProduceRequest, ProduceResponse)
                await leader.send_encoded(call, wire_codec.encode(request, call.version), has_reply=False)
                return -1
            response = await leader.request(request, ProduceResponse)
            answer = response.responses[0].partition_responses[0]
            if answer.error_code in STALE_LEADER:
                self.client.forget(self.topic)
            if answer.error_code not in WORTH_ANOTHER or not await attempts.another():
                break
        check(answer.error_code, f"partition {partition} of topic '{self.topic}'", answer.error_message)
        return answer.base_offset

    def _by_partition(
        self, records: Sequence[Record], partition_count: int, partition: int | None
    ) -> dict[int, list[Record]]:
        keyless = self._next_keyless % partition_count
        chosen: dict[int, list[Record]] = {}
        for record in records:
            if partition is not None:
                index = partition
            elif record.key is None:
                index = keyless
                self._next_keyless = keyless + 1
            else:
                index = partition_of(record.key, partition_count)
            chosen.setdefault(index, []).append(record)
        return chosen


def split(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Cut records into batches of at most MAX_BATCH_BYTES before compression; a larger record is alone."""
    batch: list[Record] = []
    batch_bytes = 0
    for record in records:
        size_bytes = len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD_BYTES
        size_bytes += sum(len(name) * 4 + len(value or b"") + 10 for name, value in record.headers)
        if batch and batch_bytes + size_bytes > MAX_BATCH_BYTES:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(record)
        batch_bytes += size_bytes
    if batch:
        yield batch
