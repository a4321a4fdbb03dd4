"""Retention: drop segments by age, by size and below the log start, by Kafka's rules.

    by age    the oldest segments whose latest timestamp is older than `retention.ms`, up to the first that is not
    by size   the oldest segments without which the partition still has `retention.bytes`
    always    segments below the log start

The first two need `delete` in `cleanup.policy` and end at the last stable offset. The objects of the last segment stay
until another one follows: a restart needs its footer. The new log start is made durable before readers see it, then the
segments leave the manifest, and later their objects the bucket (`kafscale.log.bucket.deletion`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import attrs
import trio

from kafscale.concurrency.nurseries import for_each
from kafscale.errors import DamagedObject, KafkaError, NotFound, StorageFull, StoreError
from kafscale.formats.footer_reading import read_footer_with_timestamps
from kafscale.formats.manifest import MAX_TIMESTAMP_UNKNOWN, Segment
from kafscale.log.bucket.deletion import Deleter
from kafscale.log.partition.partition import Partition
from kafscale.log.repair.repair import Examiner
from kafscale.store.base import ObjectStore
from kafscale.store.paths import SegmentKey

logger = logging.getLogger(__name__)

TASKS_COUNT = 8  # partitions looked at at once; commits of log starts that wait together share a sync
CLOCK_AHEAD_MAX_MS = 600_000  # of what time has passed since the last check

NewestTimestamps = Mapping[SegmentKey, int]


@attrs.define(eq=False, kw_only=True, repr=False)
class Retention:
    """Checks every partition periodically. `store` is the background view.

    set_log_start_offset: makes the log start of a topic id's partition durable; raises KafkaError if the topic is gone.
    """

    store: ObjectStore
    deleter: Deleter
    examiner: Examiner
    partitions: Callable[[], Sequence[Partition]]
    set_log_start_offset: Callable[[bytes, int, int], Awaitable[None]]
    interval_seconds: float
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    async def run(self) -> None:
        """Enforce retention at every interval, until cancelled. Raises what `set_log_start_offset` does.

        It is skipped when the clock has jumped far ahead, unless the clock is still there at the next check: records
        that a wrong clock makes old would not come back.
        """
        looked_ms, looked_at = self.now_ms(), trio.current_time()
        while True:
            await trio.sleep(self.interval_seconds)
            passed_ms, passed_seconds = self.now_ms() - looked_ms, trio.current_time() - looked_at
            looked_ms, looked_at = looked_ms + passed_ms, looked_at + passed_seconds
            ahead_ms = passed_ms - passed_seconds * 1000
            if ahead_ms > CLOCK_AHEAD_MAX_MS:
                logger.warning("the clock has gone ahead by %d s: retention waits for the next check", ahead_ms // 1000)
            else:
                await self.enforce()

    async def enforce(self) -> None:
        await for_each(self.partitions(), self._enforce_on, tasks_count=TASKS_COUNT)

    async def _enforce_on(self, partition: Partition) -> None:
        await trio.lowlevel.checkpoint()
        if partition.closed:
            return
        try:
            await self._move_log_start(partition)
        except (NotFound, DamagedObject, StorageFull, StoreError) as exc:
            logger.error("retention of %s waits for the next check: %s", partition, exc)
        except KafkaError:
            return  # the topic was deleted meanwhile
        if not partition.is_leaving:  # or else its objects are the next leader's to delete
            self.deleter.drop(partition.drop_deleted(), partition.config.file_delete_delay_ms)

    async def _move_log_start(self, partition: Partition) -> None:
        newest_ms = await self._newest_timestamps(partition)
        log_start_offset = retained_from(partition, newest_ms, self.now_ms())
        if log_start_offset > partition.log_start_offset:
            await self.set_log_start_offset(partition.topic_id, partition.index, log_start_offset)
            logger.info("%s: retention moved the log start to offset %d", partition, log_start_offset)
            partition.delete_records(log_start_offset)

    async def _newest_timestamps(self, partition: Partition) -> NewestTimestamps:
        newest_ms: dict[SegmentKey, int] = {}
        if not _retains_by_age(partition):
            return newest_ms
        for segment in live_segments(partition):
            newest_ms[segment.key] = await self._newest_timestamp_ms(partition, segment)
            if not _is_too_old(partition, newest_ms[segment.key], self.now_ms()):
                break
        return newest_ms

    async def _newest_timestamp_ms(self, partition: Partition, segment: Segment) -> int:
        if 0 <= segment.max_timestamp_ms < MAX_TIMESTAMP_UNKNOWN:
            return segment.max_timestamp_ms
        try:
            identity = (await read_footer_with_timestamps(self.store, segment.key)).identity
        except DamagedObject as exc:
            await self.examiner.settle(partition, segment, exc)
            return self.now_ms()  # the next check will not find it any more, or whole
        partition.manifest.learn_timestamp(attrs.evolve(segment, max_timestamp_ms=identity.max_timestamp_ms))
        return identity.max_timestamp_ms if identity.max_timestamp_ms >= 0 else identity.created_ms


def live_segments(partition: Partition) -> Sequence[Segment]:
    return [segment for segment in partition.manifest.segments if segment.last_offset >= partition.log_start_offset]


def retained_from(partition: Partition, newest_ms: NewestTimestamps, now_ms: int) -> int:
    """Return the log start that age and size ask for, or the present one. Segments not in `newest_ms` are young."""
    offset = partition.log_start_offset
    segments = live_segments(partition)
    stable_offset = partition.last_stable_offset
    if _retains_by_age(partition):
        for segment in segments:
            is_old = _is_too_old(partition, newest_ms.get(segment.key, now_ms), now_ms)
            if not is_old or segment.last_offset >= stable_offset:
                break
            offset = segment.last_offset + 1
    if partition.config.delete and partition.config.retention_bytes >= 0:
        excess_bytes = sum(segment.size_bytes for segment in segments) + partition.tail.size_bytes
        excess_bytes -= partition.config.retention_bytes
        for segment in segments:
            excess_bytes -= segment.size_bytes
            if excess_bytes < 0 or segment.last_offset >= stable_offset:
                break
            offset = max(offset, segment.last_offset + 1)
    return offset


def _retains_by_age(partition: Partition) -> bool:
    return partition.config.delete and partition.config.retention_ms >= 0


def _is_too_old(partition: Partition, newest_ms: int, now_ms: int) -> bool:
    return now_ms - newest_ms > partition.config.retention_ms
