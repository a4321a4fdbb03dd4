"""Reader of a simulation's bucket, of segments and of the write-ahead log behind them, while brokers run.

Now and then it copies the bucket, and reads on in all topics as a stream of Spark's does, or from the start. It reads
over the last few copies, each listing and each page of it from a later one, so that objects vanish between a listing
and a read as they do with a live broker. It finds records that are missing (behind), offsets that no object has (a
hole), and records that are not there in the end (ahead); the history finds foreign records, gaps and repeats.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import takewhile
from random import Random
from typing import Any

import attrs
import trio

from kafscale.errors import NotFound, RangeNotSatisfiable
from kafscale.spark.bucket.bucket import Bucket
from kafscale.spark.bucket.catalog import Catalog, PartitionLog
from kafscale.spark.bucket.reading import DataLoss, SplitReader, give
from kafscale.spark.bucket.splits import Extent, Split, holes, outcomes, plan
from kafscale.store.base import ObjectInfo, ObjectPart
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SYSTEM
from kafscale.wire.records import Record
from tests.devtools.history.history import History, Read
from tests.devtools.history.seen import CommittedRead, TransactionsSeen
from tests.devtools.world.workload import Topic, content_of, value_of

NAME = "segments and log"
PAUSE_MAX_SECONDS = 0.3
ANEW_PROBABILITY = 0.1
PICTURES_COUNT = 4
LOOK_PROBABILITY = 0.4  # with a picture
COLUMNS = ("key", "value", "offset", "timestamp", "headers")


@attrs.define(eq=False)
class DriftingBucket:
    """A `Bucket` that changes from one copy to the next while it is listed, by a seed; the last one stays.

    Between pages it does so only in listings of the broker's own objects.
    """

    pictures: Sequence[MemoryStore]
    random: Random
    page_max_count: int = 1000
    _now: int = attrs.field(default=0, init=False)

    def settle(self) -> None:
        self._now = len(self.pictures) - 1

    @property
    def _store(self) -> MemoryStore:
        return self.pictures[self._now]

    def get(self, key: str) -> ObjectPart:
        return self.get_range(key, 0, 1 << 62)

    def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        found = self._store._objects.get(key)
        if found is None:
            raise NotFound(key)
        if start >= found.content.size_bytes:
            raise RangeNotSatisfiable(key)
        return found.part(start, min(length_bytes, found.content.size_bytes - start))

    def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        found = self._store._objects.get(key)
        if found is None:
            raise NotFound(key)
        return found.part(max(0, found.content.size_bytes - length_bytes), length_bytes)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        after = start_after
        while True:
            known = self._store._keys
            first = max(bisect_left(known, prefix), bisect_right(known, after))
            keys = list(takewhile(lambda key: key.startswith(prefix), known[first : first + self.page_max_count]))
            infos = [self._store._info(key) for key in keys]
            is_last = len(keys) < self.page_max_count
            if is_last or prefix.startswith(SYSTEM):
                self._now = min(self._now + self.random.choice([0, 0, 1, 2]), len(self.pictures) - 1)
            yield from infos
            if is_last:
                return
            after = keys[-1]

    def close(self) -> None:
        pass


@attrs.define(eq=False, kw_only=True)
class LogWatcher:
    bucket: MemoryStore
    topics: Callable[[], Sequence[Topic]]
    history: History
    seen: TransactionsSeen
    random: Random
    plain_topics: Collection[str] = ("orders",)  # without transactions
    faults: list[str] = attrs.field(factory=list, init=False)
    look_count: int = attrs.field(default=0, init=False)
    logged_count: int = attrs.field(default=0, init=False)  # records that were in the log alone
    _pictures: deque[tuple[int, MemoryStore]] = attrs.field(init=False)  # with the moments of the history
    _catalogs: dict[bool, Catalog] = attrs.field(factory=dict, init=False)  # by whether they are of committed records
    _positions: dict[tuple[bool, str], int] = attrs.field(factory=dict, init=False)
    _ends: dict[str, int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._pictures = deque(maxlen=PICTURES_COUNT)

    async def run(self) -> None:
        while True:
            await trio.sleep(self.random.uniform(0, PAUSE_MAX_SECONDS))
            self._pictures.append((self.history.now(), self.bucket.copy()))
            if self.random.random() < LOOK_PROBABILITY:
                self._look()

    def look_at_end(self, ends: Callable[[str], int]) -> None:
        """Look at the bucket of a stopped broker. `ends` returns the end of a partition."""
        self._pictures.clear()
        self._pictures.append((self.history.now(), self.bucket.copy()))
        self._look()
        for partition, end_offset in self._ends.items():
            if end_offset > ends(partition):
                self.faults.append(f"{NAME}: {partition} had {end_offset}, and ends at {ends(partition)}: ahead")

    def _look(self) -> None:
        self.look_count += 1
        for committed_only in (False, True):
            bucket = DriftingBucket(
                [picture for _, picture in self._pictures], self.random, self.random.choice([2, 7, 1000])
            )
            catalog = self._catalogs.get(committed_only)
            if catalog is None or self.random.random() < 0.3:
                catalog = self._catalogs[committed_only] = Catalog(bucket, "default", committed_only, with_log=True)
            _point_at(catalog, bucket)
            catalog.look_again()
            if catalog.present.damage is not None:
                self.faults.append(f"{NAME}: {catalog.present.damage}")
                continue
            found = [fault for topic in self.topics() for fault in self._look_at(catalog, topic)]
            bucket.settle()
            for log, splits, topic in found:
                self._read(catalog, log, splits, topic)

    def _look_at(self, catalog: Catalog, topic: Topic) -> Iterator[tuple[PartitionLog, Sequence[Split], Topic]]:
        logs = catalog.partitions(topic.name)
        for index in range(topic.partition_count):
            where = topic.partition_name(index)
            log = logs.get(index)
            kind = "last stable offset" if catalog.committed_only else "high watermark"
            known = self.history.known_offset(where, kind, before=self._pictures[0][0])
            end_offset = 0 if log is None else log.end_offset
            if end_offset < known:
                self.faults.append(f"{NAME}: {where} ends at {end_offset}, and its {kind} was {known}: behind")
            if log is not None and log.start_offset < end_offset:
                self._ends[where] = max(self._ends.get(where, 0), end_offset)
                self.logged_count += max(0, end_offset - log.flushed_end_offset)
                extent = self._extent(catalog, log, where, end_offset)
                if holes(catalog, extent):  # segments were merged and deleted since they were listed, or deleted alone
                    catalog.look_again()
                    log = catalog.partitions(topic.name)[index]
                    extent = self._extent(catalog, log, where, end_offset)
                yield log, self._plan(catalog, extent, where), topic

    def _extent(self, catalog: Catalog, log: PartitionLog, where: str, end_offset: int) -> Extent:
        start_offset = self._start(catalog, log, where)
        return Extent(log=log, start_offset=start_offset, end_offset=max(start_offset, end_offset))

    def _start(self, catalog: Catalog, log: PartitionLog, where: str) -> int:
        """Go on at the end of the last read, as a stream does, or start anew; deleted records are passed over."""
        key = (catalog.committed_only, where)
        if self.random.random() < ANEW_PROBABILITY or key not in self._positions:
            self._positions[key] = 0
            self.history.sought(NAME, where)
            if catalog.committed_only:
                self.seen.sought(NAME, where)
        elif catalog.committed_only and log.start_offset > self._positions[key]:
            self.seen.sought(NAME, where)
        return max(self._positions[key], log.start_offset)

    def _plan(self, catalog: Catalog, extent: Extent, where: str) -> Sequence[Split]:
        self.faults += [f"{NAME}: {where} has a hole: {hole}" for hole in holes(catalog, extent)]
        unknown = outcomes(catalog, extent).unknown
        self.faults += [f"{NAME}: the catalog does not know how {producer} in {where} ended" for producer in unknown]
        return plan(catalog, [extent], max_records=self.random.choice([None, None, 5]))

    def _read(self, catalog: Catalog, log: PartitionLog, splits: Sequence[Split], topic: Topic) -> None:
        where = topic.partition_name(log.partition)
        reader = SplitReader(
            bucket=catalog.bucket,
            namespace="default",
            columns=COLUMNS,
            fail_on_data_loss=True,
            committed_only=catalog.committed_only,
            with_log=True,
        )
        tasks = give(splits, catalog.log_contents) if catalog.committed_only else [splits]
        try:
            records = [record for task in tasks for rows in reader.read_all(task) for record in _records(rows)]
            if catalog.committed_only:
                if topic.name not in self.plain_topics:
                    self._note_committed(where, records, log.end_offset)
                self._positions[True, where] = splits[-1].end_offset if splits else self._positions[True, where]
                return
            everything = attrs.evolve(reader, columns=("offset",), everything=True)
            is_plain = topic.name in self.plain_topics
            whole = [] if is_plain else everything.read_all(splits)
            offsets = {offset for rows in whole for offset in rows["offset"].to_pylist()}
        except DataLoss as exc:
            if not self._was_deleted(catalog.bucket, log):
                self.faults.append(f"{NAME}: {exc}")
            return
        self.history.marked(where, sorted(offsets - {record.offset for record in records}))
        reads = [Read(record.offset, value_of(record), content_of(record)) for record in records]
        self.history.polled(NAME, where, reads)
        self._positions[False, where] = splits[-1].end_offset if splits else self._positions[False, where]

    def _note_committed(self, where: str, records: Sequence[Record], stable_offset: int) -> None:
        reads = [
            CommittedRead(record.offset, value_of(record), (record.key or b"").decode(), content_of(record))
            for record in records
        ]
        if reads:
            self.seen.polled(NAME, where, reads, stable_offset=stable_offset)

    def _was_deleted(self, bucket: Bucket, log: PartitionLog) -> bool:
        now = Catalog(bucket, "default", with_log=True).partitions(log.topic).get(log.partition)
        return now is not None and now.start_offset > log.start_offset


def _point_at(catalog: Catalog, bucket: DriftingBucket) -> None:
    """Give later copies to a catalog that has looked at earlier ones."""
    for part in (catalog, catalog._reader, catalog._reader.log, catalog._reader._metadata):
        part.bucket = bucket


def _records(rows: Any) -> Iterator[Record]:
    timestamps_us = rows["timestamp"].cast("int64").to_pylist()
    for row, timestamp_us in zip(rows.drop_columns(["timestamp"]).to_pylist(), timestamps_us, strict=True):
        yield Record(
            key=row["key"],
            value=row["value"],
            timestamp_ms=timestamp_us // 1000,
            headers=[(header["key"], header["value"]) for header in row["headers"] or ()],
            offset=row["offset"],
        )
