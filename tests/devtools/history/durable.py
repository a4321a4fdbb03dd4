"""Durable data of a simulation, in order: recorded on its way to the disk (`wal`) and into the bucket (all modes)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import attrs

from kafscale.buffers import Buffer
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.config import Durability
from kafscale.formats.segment import HEADER, Footer, decode_footer
from kafscale.formats.wal_entries import RECORD_BATCH
from kafscale.formats.wal_objects import decode_object
from kafscale.log.log import Log
from kafscale.log.wal.disk import Disk
from kafscale.store.paths import parse_segment_key
from kafscale.wire.batch_header import batches, parse_header
from tests.devtools.history.history import History
from tests.devtools.history.in_log import DurableBatch, Extent, LogRules

NO_PRODUCER_ID = -1
_PLACE = slice(28, 48)  # of the header of an entry: topic id and partition
_KIND = 60  # likewise, its kind


@attrs.define(eq=False)
class _Entry:
    place: bytes
    batch: bytes
    at: float = math.inf


@attrs.frozen
class _Put:
    at: int
    key: str
    data: bytes


@attrs.define(eq=False)
class _WatchedDisk:
    disk: Disk
    durable: DurableLog

    def __getattr__(self, name: str) -> Any:
        return getattr(self.disk, name)

    async def write_and_sync(self, name: str, buffers: Sequence[Buffer], position: int) -> None:
        with self.durable.writing(buffers[1:] if position == 0 else buffers):  # a file begins with its header
            await self.disk.write_and_sync(name, buffers, position)


@attrs.define(eq=False, kw_only=True)
class DurableLog:
    """All data that may be of transactions, as it came; moments are those of the history."""

    durability: Durability
    history: History
    _entries: list[_Entry] = attrs.field(factory=list, init=False)
    _puts: list[_Put] = attrs.field(factory=list, init=False)

    def watched(self, disk: Disk) -> Disk:
        return cast(Disk, _WatchedDisk(disk, self))

    @contextmanager
    def writing(self, buffers: Sequence[Buffer]) -> Iterator[None]:
        """Record entries that are being written: two buffers each, the second its batch, and one that fills a page.

        They are durable at the end of the block; if the write failed, any of them may be.
        """
        count = len(self._entries)
        for entry, batch in zip(buffers[:-1:2], buffers[1:-1:2], strict=True):
            if memoryview(entry)[_KIND] != RECORD_BATCH:
                continue
            header = parse_header(memoryview(batch))
            if header.is_transactional or header.producer_id == NO_PRODUCER_ID:
                self._entries.append(_Entry(bytes(memoryview(entry)[_PLACE]), bytes(batch)))
        try:
            yield
        finally:
            self._settle(self._entries[count:])

    def crashed(self) -> None:
        self._settle(self._entries)

    def _settle(self, entries: Sequence[_Entry]) -> None:
        for entry in reversed(entries):
            if entry.at < math.inf:
                break  # as are all before it
            entry.at = self.history.now()

    def put(self, key: str, data: bytes) -> None:
        is_first = key.endswith("-00000.kfs")  # not merged, or compacted; where there is a log, that was before
        if key.endswith((".wal", ".kfs")) and not (is_first and self.durability is not Durability.SEGMENT):
            self._puts.append(_Put(self.history.now(), key, data))

    def faults(self, log: Log) -> Iterator[str]:
        """Return violations of the rules by the log, at any time; `log` is that of the last broker."""
        yield from self.rules(log).faults

    def rules(self, log: Log) -> LogRules:
        names = {led.topic_id: led.topic for led in log.partitions.values()}
        rules = LogRules(
            extents={
                TopicPartition(led.topic, led.index): Extent(tuple(led.epochs), led.next_offset)
                for led in log.partitions.values()
            }
        )
        rules.take(self._batches(names))
        for place, ends in self._compacted().items():
            rules.check_stable(place, ends, "compacted up to there")
        for partition in log.partitions.values():
            name, place = f"{partition.topic}-{partition.index}", TopicPartition(partition.topic, partition.index)
            rules.check_stable(place, self.history.retained_starts(name), "the log started there")
            rules.check_stable(
                place,
                self.history.stable_offsets(name),
                "the last stable offset was there",
                from_offset=self.history.log_start_offset(name),
            )
        return rules

    def _batches(self, names: Mapping[bytes, str]) -> Iterator[DurableBatch]:
        if self.durability is Durability.WAL:
            for written in self._entries:
                place = _place(names, written.place[:16], int.from_bytes(written.place[16:], "big"))
                yield DurableBatch(place, memoryview(written.batch), written.at)
        elif self.durability is Durability.S3_WAL:
            objects = (found for found in self._puts if found.key.endswith(".wal"))
            for found in sorted(objects, key=lambda put: put.key):  # some are under way at once
                for entry in decode_object(found.key, found.data)[1]:
                    if entry.partition >= 0:
                        place = _place(names, entry.topic_id, entry.partition)
                        yield DurableBatch(place, memoryview(entry.data), found.at)
        else:
            for found in self._puts:
                yield from _batches_of_segment(found)

    def _compacted(self) -> Mapping[TopicPartition, Mapping[int, int]]:
        found: dict[TopicPartition, dict[int, int]] = {}
        for put in self._puts:
            key = parse_segment_key(put.key)
            if key is not None and key.generation:
                end_offset = _footer(put).first_dirty_offset
                found.setdefault(TopicPartition(key.topic, key.partition), {}).setdefault(end_offset, put.at)
        return found


def _place(names: Mapping[bytes, str], topic_id: bytes, partition: int) -> TopicPartition:
    return TopicPartition(names.get(bytes(topic_id), ""), partition)


def _batches_of_segment(put: _Put) -> Iterator[DurableBatch]:
    key = parse_segment_key(put.key)
    if key is None or key.generation:
        return
    place = TopicPartition(key.topic, key.partition)
    for batch in batches(memoryview(put.data)[HEADER.size : _footer(put).end_position]):
        yield DurableBatch(place, batch, put.at)


def _footer(put: _Put) -> Footer:
    return decode_footer(put.data, put.key)
