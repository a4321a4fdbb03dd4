"""What the records of one partition of `__consumer_offsets` say together: batch by batch, in the order of the log.

Of each key the last record counts. What a transaction has written counts from its commit on, and not at all after an
abort; until either it is pending, of its producer. Among two offsets for one partition the one that is later in the log
wins, also where a transaction commits the earlier one afterwards (KIP-447); and who takes an offset back takes those
that are pending along.

Memory follows the groups that there are, not the length of the log.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kafscale.cluster.coordinator import InternalBatch, LeftOut
from kafscale.cluster.groups.common.records import GroupRecord, LoggedOffset, TopicPartition
from kafscale.cluster.groups.consumer.records import CoordinatorRecord
from kafscale.cluster.groups.log_records import (
    ConsumerGroupChange,
    GroupChange,
    OffsetChange,
    read_record,
)
from kafscale.errors import DecodeError
from kafscale.wire.batch_header import BatchHeader
from kafscale.wire.control_records import EndMarker
from kafscale.wire.internal_topics.consumer_offsets import ConsumerGroupKey
from kafscale.wire.records import Record


@attrs.define(eq=False, repr=False)
class LoadedGroup:
    """A group as the records have it.

    `record` is that of a classic group; those of a consumer group are by their keys, in the order of the log. A group
    that only ever committed offsets has neither.
    """

    record: GroupRecord | None = None
    consumer: dict[ConsumerGroupKey, CoordinatorRecord] = attrs.field(factory=dict)
    offsets: dict[TopicPartition, LoggedOffset] = attrs.field(factory=dict)

    @property
    def is_gone(self) -> bool:
        return self.record is None and not self.consumer and not self.offsets


@attrs.frozen
class _Place:
    """A group, and a partition that it reads."""

    group_id: str
    at: TopicPartition


@attrs.define(eq=False, repr=False)
class GroupsLoading:
    """What the records of a partition say so far."""

    partition: int
    leader_epoch: int
    unknown_count: int = attrs.field(default=0, init=False)  # records of types that are not known here
    left_out: LeftOut = attrs.field(factory=LeftOut, init=False)
    _groups: dict[str, LoadedGroup] = attrs.field(factory=dict, init=False)
    # What open transactions have committed, by producer id
    _pending: dict[int, dict[_Place, LoggedOffset]] = attrs.field(factory=dict, init=False)

    @property
    def groups(self) -> Mapping[str, LoadedGroup]:
        """The groups by id, as they are once the transactions that are open have been left out."""
        return self._groups

    @property
    def pending(self) -> Mapping[int, Mapping[str, Mapping[TopicPartition, LoggedOffset]]]:
        """The offsets of open transactions: by producer id and group."""
        found: dict[int, dict[str, dict[TopicPartition, LoggedOffset]]] = {}
        for producer_id, pending in self._pending.items():
            for place, logged in pending.items():
                found.setdefault(producer_id, {}).setdefault(place.group_id, {})[place.at] = logged
        return found

    def apply(self, batch: InternalBatch) -> None:
        """Take the next batch of the partition."""
        if batch.damage is not None:
            self.left_out.note(batch.header.base_offset, batch.damage, batch.header.record_count)
        if batch.marker is not None:
            self._end_transaction(batch.marker)
        for record in batch.records:
            try:
                self._take(record, batch.header)
            except DecodeError as exc:
                self.left_out.note(record.offset, exc)

    def _take(self, record: Record, header: BatchHeader) -> None:
        match change := read_record(record):
            case None:
                self.unknown_count += 1
            case GroupChange():
                self._take_group(change)
            case ConsumerGroupChange():
                self._take_consumer_group(change.group_id, change.record)
            case OffsetChange():
                self._take_offset(change, record.offset, header)

    def _take_offset(self, change: OffsetChange, logged_at: int, header: BatchHeader) -> None:
        place = _Place(change.group_id, change.at)
        if change.offset is None:
            self._forget_offset(place)
        elif header.is_transactional:
            self._pending.setdefault(header.producer_id, {})[place] = LoggedOffset(change.offset, logged_at)
        else:
            self._put_offset(place, LoggedOffset(change.offset, logged_at))

    def _take_group(self, change: GroupChange) -> None:
        group = self._groups.get(change.group_id)
        if group is None:
            if change.record is None:
                return
            group = self._groups[change.group_id] = LoadedGroup()
        group.record = change.record
        self._forget_if_gone(change.group_id, group)

    def _take_consumer_group(self, group_id: str, record: CoordinatorRecord) -> None:
        group = self._groups.get(group_id)
        if group is None:
            if record.value is None:
                return
            group = self._groups[group_id] = LoadedGroup()
        group.consumer.pop(record.key, None)
        if record.value is not None:
            group.consumer[record.key] = record
        self._forget_if_gone(group_id, group)

    def _put_offset(self, place: _Place, logged: LoggedOffset) -> None:
        group = self._groups.get(place.group_id)
        if group is None:
            group = self._groups[place.group_id] = LoadedGroup()
        group.offsets[place.at] = logged

    def _forget_offset(self, place: _Place) -> None:
        for pending in self._pending.values():
            pending.pop(place, None)
        group = self._groups.get(place.group_id)
        if group is not None:
            group.offsets.pop(place.at, None)
            self._forget_if_gone(place.group_id, group)

    def _forget_if_gone(self, group_id: str, group: LoadedGroup) -> None:
        if group.is_gone:
            del self._groups[group_id]

    def _end_transaction(self, marker: EndMarker) -> None:
        pending = self._pending.pop(marker.producer_id, {})
        for place, logged in pending.items() if marker.is_commit else ():
            group = self._groups.get(place.group_id)
            former = None if group is None else group.offsets.get(place.at)
            if former is None or former.logged_at < logged.logged_at:
                self._put_offset(place, logged)
