"""The group coordinator's side of `kafscale.cluster.coordinator`: partitions of `__consumer_offsets` come and go.

`Leadership` tells `GroupKeeper` which partitions this broker leads; `InternalOffsetsLog` writes to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import attrs

from kafscale.cluster.coordinator import Appended, InternalBatch, InternalLog, LeftOut, RecordsEntry
from kafscale.cluster.groups.coordinator import GroupCoordinator
from kafscale.cluster.groups.loading import GroupsLoading
from kafscale.errors import KafkaError
from kafscale.log.partition.partition import Partition
from kafscale.wire.control_records import EndMarker
from kafscale.wire.error_codes import NOT_COORDINATOR
from kafscale.wire.records import Record


@attrs.define(eq=False, repr=False)
class InternalOffsetsLog:
    """The partitions of `__consumer_offsets`, which is the `topic`, as they are written to."""

    internal: InternalLog
    topic: str

    def append(self, partition: int, records: Sequence[Record]) -> Appended | None:
        """Append records as one batch; None if there is no room for it, and then nothing has happened.

        Raises KafkaError if the partition is not led here, StorageFailed.
        """
        found = self.internal.partition(self.topic, partition)
        if found is None:
            raise KafkaError(NOT_COORDINATOR, f"{self.topic}-{partition} is not led here")
        return self.internal.append_group([RecordsEntry(found, records)], time.time_ns() // 1_000_000)

    async def wait_for_room(self, partition: int, records: Sequence[Record]) -> None:
        """Wait until there may be room for these; at once if the partition is not led here."""
        found = self.internal.partition(self.topic, partition)
        if found is not None:
            await self.internal.wait_for_room([RecordsEntry(found, records)])


@attrs.define(eq=False, repr=False)
class _Loader:
    """Takes the contents of one partition."""

    coordinator: GroupCoordinator
    loading: GroupsLoading

    @property
    def left_out(self) -> LeftOut:
        return self.loading.left_out

    def apply(self, batch: InternalBatch) -> None:
        self.loading.apply(batch)

    def finish(self) -> None:
        self.coordinator.take_over(self.loading)


@attrs.define(eq=False, repr=False)
class GroupKeeper:
    """Keeps the groups of the partitions that are led here. `partition_count` tells how many the topic has."""

    coordinator: GroupCoordinator
    partition_count: Callable[[], int]

    def begin_loading(self, partition: Partition) -> _Loader:
        """Know that this broker leads the partition, with its leader epoch; what was known of it before is void."""
        loading = self.coordinator.begin_loading(
            partition.index, partition.leader_epoch, partition_count=self.partition_count()
        )
        return _Loader(self.coordinator, loading)

    def resign(self, index: int) -> None:
        """Know that this broker leads that partition no more."""
        self.coordinator.resign(index)

    def end_transaction(self, partition: Partition, marker: EndMarker, appended: Appended) -> None:
        """Know that the end of a transaction was appended there; `InternalLog.on_end` calls it."""
        self.coordinator.transactions.end(partition.index, marker.producer_id, appended, is_commit=marker.is_commit)
