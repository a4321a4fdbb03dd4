"""Which partitions of `__consumer_offsets` this broker leads: it coordinates the groups that hash to them.

    loading = partitions.begin_loading(partition, leader_epoch, partition_count=50)
    loading.apply(batch)                    each batch of the partition, in order
    partitions.finish_loading(loading)      True if what was read is to be coordinated from now on

A partition that is handed over meanwhile is resigned, and the loading comes to nothing. What is asked of a group in the
meantime is answered with COORDINATOR_LOAD_IN_PROGRESS, and NOT_COORDINATOR where its partition is not led here. The
topic is made when it is first needed, and has as many partitions from then on; before that there are no groups. A
broker that leads none of them knows of the topic all the same, or it would take every group for one of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from kafscale.cluster.coordinator.partitioning import coordinator_partition
from kafscale.cluster.groups.loading import GroupsLoading
from kafscale.wire.error_codes import COORDINATOR_LOAD_IN_PROGRESS, NONE, NOT_COORDINATOR


def _no_topic() -> int:
    return 0


@attrs.define(eq=False, repr=False)
class LedPartitions:
    """The partitions that are led here, or are being read. `known_count` tells how many the topic has, 0 if none."""

    known_count: Callable[[], int] = _no_topic
    _count: int = attrs.field(default=0, init=False)  # of the topic, as of the first partition that was led here
    _led: dict[int, int] = attrs.field(factory=dict, init=False)  # partition -> leader epoch
    _loading: dict[int, GroupsLoading] = attrs.field(factory=dict, init=False)

    @property
    def partition_count(self) -> int:
        """Return how many partitions the topic has, wherever they are led; 0 while there is none."""
        return self._count or self.known_count()

    @property
    def has_topic(self) -> bool:
        """Tell whether the topic is there, as far as is known here."""
        return self.partition_count > 0

    def partition_of(self, group_id: str) -> int:
        """Return the partition whose leader coordinates the group. The topic must be there."""
        return coordinator_partition(group_id, self.partition_count)

    def error_code(self, group_id: str) -> int:
        """Return why the group can't be asked for here now; NONE if it can, or if there are no groups yet."""
        if not self.has_topic:
            return NONE
        partition = self.partition_of(group_id)
        if partition in self._led:
            return NONE
        return COORDINATOR_LOAD_IN_PROGRESS if partition in self._loading else NOT_COORDINATOR

    def leader_epoch(self, partition: int) -> int | None:
        """Return the leader epoch of a partition that is led here and loaded."""
        return self._led.get(partition)

    @property
    def loading_count(self) -> int:
        """Count the partitions that are being read."""
        return len(self._loading)

    def begin_loading(self, partition: int, leader_epoch: int, *, partition_count: int) -> GroupsLoading:
        """This broker leads the partition from now on, with this leader epoch."""
        assert self._count in (0, partition_count), (self._count, partition_count)
        assert 0 <= partition < partition_count, (partition, partition_count)
        self._count = partition_count
        self.resign(partition)
        loading = self._loading[partition] = GroupsLoading(partition, leader_epoch)
        return loading

    def finish_loading(self, loading: GroupsLoading) -> bool:
        """All has been read; False if the partition has been given up, or is being read anew."""
        if self._loading.get(loading.partition) is not loading:
            return False
        del self._loading[loading.partition]
        self._led[loading.partition] = loading.leader_epoch
        return True

    def resign(self, partition: int) -> None:
        """This broker does not lead the partition any more."""
        self._loading.pop(partition, None)
        self._led.pop(partition, None)
