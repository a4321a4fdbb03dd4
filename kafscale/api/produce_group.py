"""A shorter way for Produce requests that are like earlier ones and have nothing to be refused: nearly all of them.

`append_plain` takes one into the log by the same checks as `kafscale.api.produce`, in the same order, and makes its
reply at once. The requests of one read that become durable together then have one place in the queue, one wait and one
buffer to send. What is not plain in any respect is left to `kafscale.api.produce`, untouched.
"""

from __future__ import annotations

import time

import attrs
import trio

from kafscale.api.produce import CHECKED_IN_THREAD_BYTES, check_records, not_durable, refuse, validated
from kafscale.api.services import Services
from kafscale.errors import KafkaError, StorageFailed
from kafscale.log.partition.partition import Partition
from kafscale.log.wal.local_wal import Round
from kafscale.wire import codec
from kafscale.wire.frames import SIZE_BYTES, parse_response_header, response_frame
from kafscale.wire.messages.produce import ProduceResponse
from kafscale.wire.plain_produce import PlainRequest
from kafscale.wire.records import CODEC_MASK, BatchHeader


@attrs.define(eq=False)
class ProduceGroup:
    """Requests of one version that are in the log, and their replies, which are true when `round` is done.

    `refused` are the responses that stand in their place if it fails.
    """

    version: int
    round: Round
    replies: list[bytes] = attrs.field(factory=list, init=False)
    refused: list[ProduceResponse] = attrs.field(factory=list, init=False)

    async def wait(self) -> None:
        """Until the replies may be sent."""
        if not self.round.done:
            try:
                await self.round.wait()
            except (StorageFailed, trio.TooSlowError) as exc:
                self._refuse(not_durable(exc))

    def _refuse(self, exc: KafkaError) -> None:
        flexible = self.version >= ProduceResponse.FLEXIBLE_SINCE
        for position, reply in enumerate(self.replies):
            frame = memoryview(reply)[SIZE_BYTES:]
            correlation_id, start = parse_response_header(frame, flexible_header=flexible)
            response = codec.decode(ProduceResponse, self.version, frame[start:])
            refuse(response.responses[0].partition_responses[0], exc)
            self.refused.append(response)
            parts = codec.encode(response, self.version)
            self.replies[position] = b"".join(response_frame(correlation_id, parts, flexible))


def append_plain(services: Services, request: PlainRequest) -> tuple[Round, bytes] | None:
    """Take a request into the log: the round in which it becomes durable, and its reply for then.

    None if it is not plain; then nothing has happened.
    """
    pattern, correlation_id, index, records = request
    partition = services.log.partition_named(pattern.topic, index)
    if partition is None or partition.config.log_append_time:
        return None
    now_ms = time.time_ns() // 1_000_000
    try:
        header = validated(partition.config, records, pattern.version, now_ms)
        if not _is_plain(services, partition, header, records):
            return None
    except KafkaError:
        return None
    placed = partition.place_nowait(records)
    if placed is None:
        return None
    base_offset = partition.append(header, placed, now_ms).base_offset
    assert partition.latest_round is not None
    return partition.latest_round, pattern.reply(correlation_id, index, base_offset, partition.log_start_offset)


def _is_plain(services: Services, partition: Partition, header: BatchHeader, records: memoryview) -> bool:
    """Whether a batch is to be appended now: not one that takes long to check, or repeats an earlier one.

    Raises KafkaError if it is to be refused.
    """
    if header.attributes & CODEC_MASK or partition.config.compact:
        if len(records) > CHECKED_IN_THREAD_BYTES:
            return False
        check_records(partition, header, records, services.settings.limits.max_decompressed_bytes)
    return header.producer_id < 0 or partition.producers.check(header) is None
