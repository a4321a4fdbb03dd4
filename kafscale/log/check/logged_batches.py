"""Check the batches of a write-ahead log against the segments: no gap between the two, and equal batches.

Until a log is trimmed it may have batches that segments have too. 40 bytes are kept for each batch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping

import attrs

from kafscale.formats.manifest import PartitionId
from kafscale.formats.wal_entries import WalEntry
from kafscale.log.repair.verify_segment import BatchMark, Finding, Kind
from kafscale.store.paths import topic_id_text
from kafscale.wire.batch_header import BatchHeader

WRITTEN_ANEW = "; a broker that took over has written it anew"


@attrs.define(eq=False, repr=False)
class LoggedPartition:
    """The batches of one partition, in the order of the log."""

    base_offsets: array[int] = attrs.field(factory=lambda: array("q"), init=False)
    next_offsets: array[int] = attrs.field(factory=lambda: array("q"), init=False)
    leader_epochs: array[int] = attrs.field(factory=lambda: array("i"), init=False)
    crcs: array[int] = attrs.field(factory=lambda: array("I"), init=False)
    sources: array[int] = attrs.field(factory=lambda: array("I"), init=False)
    positions: array[int] = attrs.field(factory=lambda: array("Q"), init=False)

    def sort(self) -> None:
        """Put them in the order of their leaders."""
        columns = [getattr(self, field.name) for field in attrs.fields(LoggedPartition)]
        rows = list(zip(*columns, strict=True))
        order = sorted(range(len(rows)), key=lambda at: (self.leader_epochs[at], self.base_offsets[at]))
        if order != list(range(len(rows))):
            for place, column in enumerate(columns):
                column[:] = array(column.typecode, [rows[at][place] for at in order])

    @property
    def first_offset(self) -> int:
        return min(self.base_offsets)


@attrs.frozen(kw_only=True)
class SegmentsEnd:
    """The end of a partition's segments: the offset behind the last one, and its leader epoch."""

    offset: int = 0
    leader_epoch: int = -1


@attrs.define(eq=False, repr=False)
class LoggedBatches:
    """The batches of one log. `kind` is that of its findings."""

    kind: Kind = Kind.WAL_OBJECT
    partitions: defaultdict[PartitionId, LoggedPartition] = attrs.field(
        factory=lambda: defaultdict(LoggedPartition), init=False
    )
    topic_names: dict[bytes, str] = attrs.field(factory=dict, init=False)  # by id, as far as the log tells them
    _names: list[str] = attrs.field(factory=list, init=False)

    def add(self, name: str, entry: WalEntry, header: BatchHeader) -> None:
        """The next entry of the log, which is in the object or file `name`."""
        if not self._names or self._names[-1] != name:
            self._names.append(name)
        partition = self.partitions[entry.topic_id, entry.partition]
        partition.base_offsets.append(entry.base_offset)
        partition.next_offsets.append(header.next_offset)
        partition.leader_epochs.append(entry.leader_epoch)
        partition.crcs.append(header.crc)
        partition.sources.append(len(self._names) - 1)
        partition.positions.append(entry.position)

    def put_in_order(self) -> None:
        """Sort the batches of each partition by leader epoch and offset, where its leaders had streams side by side."""
        for partition in self.partitions.values():
            partition.sort()

    def compare(
        self, partition_id: PartitionId, marks: Mapping[int, BatchMark], *, last_offset: int, key: str
    ) -> Iterator[Finding]:
        """Check that what is in a segment as well is the same there. `marks` are those of all of its batches, by
        offset.

        Where they are of different epochs, the later one's batch counts, and there is no damage.
        """
        logged = self.partitions[partition_id]
        first_offset, last_epoch = min(marks), max(mark.leader_epoch for mark in marks.values())
        begin = bisect_left(logged.base_offsets, first_offset)  # offsets ascend, except superseded ones
        for at in range(begin, bisect_right(logged.base_offsets, last_offset, begin)):
            base_offset = logged.base_offsets[at]
            mark = marks.get(base_offset)
            if mark is not None and mark.crc == logged.crcs[at]:
                continue
            epoch = last_epoch if mark is None else mark.leader_epoch
            what = "no batch there" if mark is None else "another batch there"
            message = f"offset {base_offset}: {key} has {what}"
            if epoch > logged.leader_epochs[at]:
                message += WRITTEN_ANEW
            elif epoch < logged.leader_epochs[at]:
                message += "; an earlier broker wrote that too late, and the next start leaves it out"
            yield self._finding(logged, at, message, damage=epoch == logged.leader_epochs[at])

    def follow(
        self,
        partition_id: PartitionId,
        end: SegmentsEnd,
        *,
        partition: str,
        log_start_offset: int,
        lost_offset: int = 0,
    ) -> Iterator[Finding]:
        """The log must go on where the segments end. `partition` is its name for people."""
        logged = self.partitions[partition_id]
        next_offset = end.offset
        for at, base_offset in enumerate(logged.base_offsets):
            if next_offset < base_offset <= log_start_offset:
                next_offset = base_offset
            elif base_offset < next_offset <= end.offset and logged.leader_epochs[at] > end.leader_epoch:
                next_offset = base_offset  # what the segments have from here on is late
            problem = None
            if base_offset > next_offset:
                what = "objects" if base_offset > lost_offset else "records were lost with files of this log that"
                problem = f"goes on at offset {base_offset}, but {next_offset} is the next; {what} are missing"
            elif base_offset < next_offset < logged.next_offsets[at]:
                last_offset = logged.next_offsets[at] - 1
                problem = f"has offsets {base_offset} to {last_offset}, of which only the first are there already"
            if problem is not None:
                damage = end.leader_epoch <= logged.leader_epochs[at]
                message = f"{partition} {problem}" + ("" if damage else WRITTEN_ANEW)
                yield self._finding(logged, at, message, damage=damage)
            next_offset = max(next_offset, logged.next_offsets[at])

    def unknown(self, partition_id: PartitionId, outcome: str, *, damage: bool) -> Finding:
        """Report the batches of a partition that the metadata does not know; `outcome` tells what becomes of them."""
        logged = self.partitions[partition_id]
        topic_id, index = partition_id
        topic = f"{self.topic_names.get(topic_id, 'a topic whose name is not known')} ({topic_id_text(topic_id)})"
        offsets = f"offsets {logged.first_offset} to {max(logged.next_offsets) - 1}"
        return Finding(
            name=self._names[logged.sources[0]],
            kind=self.kind,
            message=f"{len(logged.crcs)} record batches, {offsets}, are of partition {index} of {topic}, which the "
            f"metadata does not know, as it was lost or is an older copy; {outcome}",
            position=logged.positions[0],
            damage=damage,
        )

    def _finding(self, logged: LoggedPartition, at: int, message: str, *, damage: bool) -> Finding:
        return Finding(
            name=self._names[logged.sources[at]],
            kind=self.kind if damage else Kind.SUPERSEDED,
            message=message,
            position=logged.positions[at],
            damage=damage,
        )
