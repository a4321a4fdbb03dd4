"""Load the groups of one partition of `__consumer_offsets` from its records, in the order of the log.

The last record of each key counts. Records of a transaction are pending until its marker commits or drops them. Of two
offsets for one partition the later one in the log wins, even if a transaction commits the earlier one afterwards
(KIP-447); deleting an offset also deletes pending offsets for its partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups.common.context import LoggedOffset
from kafscale.cluster.groups.common.log_records import CoordinatorRecord, read_record
from kafscale.wire.batch_header import BatchHeader
from kafscale.wire.control_records import EndMarker
from kafscale.wire.internal_topics.consumer_offsets import (
    ConsumerOffsetsKey,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
)
from kafscale.wire.records import Record


@attrs.define(eq=False, repr=False)
class LoadedGroup:
    """A group as in its records: `record` is of a classic group, `consumer` of a consumer group, in log order."""

    record: GroupMetadataValue | None = None
    consumer: dict[ConsumerOffsetsKey, CoordinatorRecord] = attrs.field(factory=dict)
    offsets: dict[TopicPartition, LoggedOffset] = attrs.field(factory=dict)

    @property
    def is_gone(self) -> bool:
        return self.record is None and not self.consumer and not self.offsets


@attrs.frozen
class _GroupPlace:
    group_id: str
    at: TopicPartition


@attrs.define(eq=False, repr=False)
class LoadedGroups:
    """The groups of one partition, as in its records; a `PartitionState` until the coordinator takes it over."""

    partition: int
    unknown_count: int = attrs.field(default=0, init=False)  # records of types that are not known here
    groups: dict[str, LoadedGroup] = attrs.field(factory=lambda: defaultdict(LoadedGroup), init=False)
    _pending: dict[int, dict[_GroupPlace, LoggedOffset]] = attrs.field(factory=dict, init=False)  # by producer id

    @property
    def pending(self) -> Mapping[int, Mapping[str, Mapping[TopicPartition, LoggedOffset]]]:
        """Return the offsets of open transactions by producer id and group."""
        found: dict[int, dict[str, dict[TopicPartition, LoggedOffset]]] = {}
        for producer_id, pending in self._pending.items():
            for place, logged in pending.items():
                found.setdefault(producer_id, {}).setdefault(place.group_id, {})[place.at] = logged
        return found

    def clear(self) -> None:
        """Free the memory after the coordinator has taken the groups over."""
        self.groups.clear()
        self._pending.clear()

    def apply(self, record: Record, header: BatchHeader) -> None:
        """Apply the next record. Raises DecodeError."""
        change = read_record(record)
        if change is None:
            self.unknown_count += 1
            return
        key = change.key
        if isinstance(key, OffsetCommitKey):
            self._take_offset(key, None if change.value is None else LoggedOffset(change.value, record.offset), header)
        elif change.value is not None or key.group_id in self.groups:
            group = self.groups[key.group_id]
            if isinstance(key, GroupMetadataKey):
                group.record = change.value
            else:
                group.consumer.pop(key, None)
                if change.value is not None:
                    group.consumer[key] = change
            self._forget_if_gone(key.group_id, group)

    def _take_offset(self, key: OffsetCommitKey, logged: LoggedOffset | None, header: BatchHeader) -> None:
        place = _GroupPlace(key.group_id, TopicPartition(key.topic, key.partition))
        if logged is None:
            self._forget_offset(place)
        elif header.is_transactional:
            self._pending.setdefault(header.producer_id, {})[place] = logged
        else:
            self._put_offset(place, logged)

    def _put_offset(self, place: _GroupPlace, logged: LoggedOffset) -> None:
        self.groups[place.group_id].offsets[place.at] = logged

    def _forget_offset(self, place: _GroupPlace) -> None:
        for pending in self._pending.values():
            pending.pop(place, None)
        group = self.groups.get(place.group_id)
        if group is not None:
            group.offsets.pop(place.at, None)
            self._forget_if_gone(place.group_id, group)

    def _forget_if_gone(self, group_id: str, group: LoadedGroup) -> None:
        if group.is_gone:
            del self.groups[group_id]

    def apply_marker(self, marker: EndMarker) -> None:
        """Commit or drop the offsets that a producer's transaction has committed."""
        pending = self._pending.pop(marker.producer_id, {})
        for place, logged in pending.items() if marker.is_commit else ():
            group = self.groups.get(place.group_id)
            former = None if group is None else group.offsets.get(place.at)
            if former is None or former.logged_at < logged.logged_at:
                self._put_offset(place, logged)
