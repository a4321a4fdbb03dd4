"""Decides how far a stream's next batch goes: by new records and the limits of the rate.

Spark 4.1 asks a source for the latest offset without telling the stream's position, so the source remembers its last
answer. After a restart Spark first asks for the partitions of the last batch.

Positions have the ids of topics, so that no offset of a deleted topic is taken for one of its successor: that is
reported, and with failOnDataLoss=false the stream goes on with the new topic from its beginning.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import attrs

from kafscale.spark.bucket.bucket import CountedBucket
from kafscale.spark.bucket.catalog import PartitionLog
from kafscale.spark.bucket.position import Logs, Position, TopicPartition, described, ids_of, lag_behind, recreations
from kafscale.spark.bucket.reading import TopicCreatedAgain, get_count
from kafscale.spark.bucket.splits import Extent, Split, end_within, size_bytes
from kafscale.spark.source.options import StreamOptions
from kafscale.spark.source.planning import Offsets, Planner

logger = logging.getLogger(__name__)


@attrs.define(kw_only=True, eq=False, repr=False)
class StreamProgress:
    """The progress of one run of a stream, in the driver. `clock` is in seconds."""

    planner: Planner
    options: StreamOptions
    clock: Callable[[], float] = time.monotonic
    newest: Offsets = attrs.field(factory=dict, init=False)  # as the bucket had it at the last look
    task_get_count: int = attrs.field(default=0, init=False)  # that tasks were planned with so far
    _logs: Logs = attrs.field(factory=dict, init=False)  # of the last look
    _initial: Position | None = attrs.field(default=None, init=False)
    _position: Position | None = attrs.field(default=None, init=False)
    _last: Offsets | None = attrs.field(default=None, init=False)
    _last_batch_seconds: float = attrs.field(default=-math.inf, init=False)
    _has_warned: bool = attrs.field(default=False, init=False)

    def initial(self) -> Position:
        """Return the beginning of a stream without a checkpoint, always the same. Raises ConfigError, StoreError."""
        if self._initial is None:
            self._begin(self.planner.logs(self.options.starting.names))
        assert self._initial is not None
        return self._initial

    def stop_at_present(self) -> None:
        """Read no records that come later. Raises ConfigError, StoreError."""
        self._last = {partition: log.end_offset for partition, log in self.planner.logs().items()}

    def latest(self, start: Position | None = None, *, is_limited: bool = True) -> Position:
        """Return the end of the next batch behind `start`, or behind the last one, within the limits.

        Raises ConfigError, DataLoss, StoreError.
        """
        if start is not None:
            self._position = start
        if self._position is None:
            logs = self.planner.logs(self.options.starting.names)
            self._position = self._begin(logs)
        else:
            logs = self.planner.logs(self._position.offsets.keys(), must_exist=False)
        self.planner.report_damaged(logs.values())
        anew = self._created_again(logs, self._position)
        begun = {partition: log.start_offset for partition, log in logs.items() if partition[0] in anew}
        offsets = {**self._position.offsets, **begun}
        topic_ids = {**self._position.topic_ids, **ids_of(logs.values())}
        self._report_vanished({name: log for name, log in logs.items() if name not in begun}, offsets)
        available = self._available(logs, offsets)
        self.newest = {partition: extent.end_offset for partition, extent in available.items()}
        self._logs = logs
        if is_limited and self._waits_for_more(available):
            return self._position
        ends = self._limited(available) if is_limited else self.newest
        names = {topic for topic, _ in available}
        self._position = Position(
            offsets={partition: ends[partition] for partition in available},
            topic_ids={topic: topic_id for topic, topic_id in topic_ids.items() if topic in names},
        )
        return self._position

    def metrics(self, now_ms: int) -> dict[str, Any]:
        """Return metrics of the source: topics, lag behind the last planned batch, requests to the bucket.

        Raises StoreError.
        """
        position = Position() if self._position is None else self._position
        catalog = self.planner.catalog
        behind = [
            lag_behind(catalog, self._logs[partition], position.offsets.get(partition, 0), end_offset)
            for partition, end_offset in self.newest.items()
        ]
        found: dict[str, Any] = {
            "description": described(topic for topic, _ in self.newest),
            "recordsBehind": sum(lag.offsets_behind for lag in behind),
            "bytesBehind": sum(lag.bytes_behind for lag in behind),
            "secondsBehind": max((lag.seconds_behind(now_ms) for lag in behind), default=0.0),
        }
        if isinstance(catalog.bucket, CountedBucket):
            found["planningGets"] = catalog.bucket.get_count
            found["planningLists"] = catalog.bucket.list_count
            found["taskGets"] = self.task_get_count
        return found

    def tasks(self, start: Position, end: Position) -> Sequence[Sequence[Split]]:
        tasks = self.planner.tasks(self.splits(start, end))
        self.task_get_count += sum(map(get_count, tasks))
        return tasks

    def splits(self, start: Position, end: Position) -> Sequence[Split]:
        """Plan a batch.

        New partitions begin at their earliest offset, as with the Kafka source. Raises DataLoss, StoreError.
        """
        self._position = end
        if start.offsets == end.offsets and start.topic_ids == end.topic_ids:
            return []
        logs = self.planner.logs(end.offsets.keys(), must_exist=False)
        if not self._is_initial(
            start
        ):  # which, where the first batch is repeated, has partitions that are newer than it
            for topic, index in start.offsets.keys() - end.offsets.keys():
                self.planner.report(f"partition {index} of topic '{topic}' {self.planner.gone(topic)}")
        for topic, index in sorted(end.offsets.keys() - logs.keys()):
            if start.offsets.get((topic, index), 0) < end.offsets[topic, index]:
                self.planner.report(
                    f"partition {index} of topic '{topic}' {self.planner.gone(topic)}, and was not read"
                )
        gone = recreations(end.topic_ids, logs)
        for recreation in gone.values():
            self.planner.report(str(recreation), TopicCreatedAgain)
        logs = {name: log for name, log in logs.items() if name in end.offsets and name[0] not in gone}
        starts = {partition: self._start(partition, start, end, logs) for partition in logs}
        return self.planner.splits(logs, starts, end.offsets)

    def _begin(self, logs: Logs) -> Position:
        if self._initial is None:
            offsets = self.planner.finder.find(self.options.starting, logs)
            self._initial = Position(offsets=offsets, topic_ids=ids_of(logs.values()))
            logger.info("the stream begins at %s", self._initial.to_json())
        return self._initial

    def _is_initial(self, position: Position) -> bool:
        return self._initial is not None and position.offsets == self._initial.offsets

    def _start(self, partition: TopicPartition, start: Position, end: Position, logs: Logs) -> int:
        topic, index = partition
        start_offset, end_offset = start.offsets.get(partition), end.offsets[partition]
        earliest = min(logs[partition].start_offset, end_offset)
        if start_offset is None:
            if earliest:
                self.planner.report(f"partition {index} of topic '{topic}' is new, and begins at {earliest}, not at 0")
            return earliest
        topic_id = start.topic_ids.get(topic)
        if topic_id is not None and topic_id != end.topic_ids.get(topic, topic_id):
            return earliest  # which was reported when the batch was planned
        if start_offset <= end_offset:
            return start_offset
        if self._is_initial(start) and self.options.starting.is_moving(partition):
            return end_offset  # the first batch is repeated; when it was planned the stream began before its end
        went_back = f"went back from offset {start_offset} to {end_offset}"
        self.planner.report(f"partition {index} of topic '{topic}' {went_back}")
        return end_offset

    def _created_again(self, logs: Logs, position: Position) -> Set[str]:
        found = recreations(position.topic_ids, logs)
        for recreation in found.values():
            self.planner.report(str(recreation), TopicCreatedAgain)
        return found.keys()

    def _report_vanished(self, logs: Logs, position: Offsets) -> None:
        for (topic, index), log in logs.items():
            end_offset = max(log.end_offset, position.get((topic, index), log.start_offset))
            seen = self.newest.get((topic, index), 0)
            if end_offset < seen:
                self.planner.report(f"offsets {end_offset} to {seen - 1} of partition {index} of {topic} have gone")

    def _available(self, logs: Logs, position: Offsets) -> Mapping[TopicPartition, Extent]:
        return {
            partition: Extent(
                log=log,
                start_offset=position.get(partition, log.start_offset),
                end_offset=max(self._end(partition, log), position.get(partition, log.start_offset)),
            )
            for partition, log in logs.items()
            if self._last is None or partition in self._last or partition in position
        }

    def _end(self, partition: TopicPartition, log: PartitionLog) -> int:
        return log.end_offset if self._last is None else min(log.end_offset, self._last.get(partition, 0))

    def _waits_for_more(self, available: Mapping[TopicPartition, Extent]) -> bool:
        if self.options.min_offsets is None or self._last is not None:
            return False
        now = self.clock()
        is_early = (now - self._last_batch_seconds) * 1000 < self.options.max_delay_ms
        if is_early and sum(extent.count for extent in available.values()) < self.options.min_offsets:
            return True
        self._last_batch_seconds = now
        return False

    def _limited(self, available: Mapping[TopicPartition, Extent]) -> Offsets:
        """Share the limit by size, as KafkaMicroBatchStream.rateLimit does: small partitions get one at least."""
        ends = {partition: extent.end_offset for partition, extent in available.items()}
        total = sum(extent.count for extent in available.values())
        if self.options.max_offsets is not None and total > self.options.max_offsets:
            for partition, extent in available.items():
                share = self.options.max_offsets * (extent.count / total)
                taken = math.ceil(share) if share < 1 else math.floor(share)
                ends[partition] = min(extent.end_offset, extent.start_offset + taken)
        if self.options.max_bytes is not None:
            ends = self._limited_by_bytes(available, ends, self.options.max_bytes)
        self._warn_of_available_now(any(ends[partition] < extent.end_offset for partition, extent in available.items()))
        return ends

    def _limited_by_bytes(
        self, available: Mapping[TopicPartition, Extent], ends: Offsets, max_bytes: int
    ) -> dict[TopicPartition, int]:
        catalog = self.planner.catalog
        extents = {
            partition: attrs.evolve(extent, end_offset=ends[partition])
            for partition, extent in available.items()
            if extent.start_offset < ends[partition]
        }
        sizes = {partition: size_bytes(catalog, extent) for partition, extent in extents.items()}
        total_bytes = sum(sizes.values())
        limited = dict(ends)
        if total_bytes > max_bytes:
            for partition, extent in extents.items():
                share_bytes = max_bytes * sizes[partition] // total_bytes
                limited[partition] = end_within(catalog, extent, share_bytes)
        return limited

    def _warn_of_available_now(self, is_cut: bool) -> None:
        if is_cut and self.options.warns_of_available_now and not self._has_warned and self._last is None:
            self._has_warned = True
            logger.warning(
                "%s leaves records for later batches; under Trigger.AvailableNow there is only one on this Spark, so "
                "run the query again on its checkpoint until nothing is left",
                " and ".join(self.options.limits),
            )
