"""Deletion of groups and committed offsets: on request, with their topic, and past retention."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

import attrs
import trio

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.coordinator.writer import RecordWriter
from kafscale.cluster.groups.common.settings import GROUP_BYTES, GroupSettings, GroupStateBytes
from kafscale.cluster.groups.entry import GroupEntry
from kafscale.cluster.groups.log_records import offset_record
from kafscale.cluster.groups.offsets import PendingChange
from kafscale.concurrency.signals import OneShot
from kafscale.wire import error_codes

logger = logging.getLogger(__name__)

SWEEP_BATCH_COUNT = 100  # groups that the retention sweep looks at before it lets others run


@attrs.define(eq=False, kw_only=True, repr=False)
class GroupDeletion:
    """Deletes from `entries`, the groups of a coordinator by id; all records that it writes are essential."""

    entries: dict[str, GroupEntry]
    log: RecordWriter
    partition_of: Callable[[str], int]
    settings: GroupSettings
    state_bytes: GroupStateBytes
    wall_clock_ms: Callable[[], int]

    def delete_group(self, group_id: str) -> OneShot[int]:
        """Delete an empty group with its offsets; the error code, once that is durable."""
        entry = self.entries.get(group_id)
        if entry is None or entry.is_dead:
            return OneShot(error_codes.GROUP_ID_NOT_FOUND)
        if not entry.is_empty:
            return OneShot(error_codes.NON_EMPTY_GROUP)
        reply: OneShot[int] = OneShot()
        self._bury(group_id, entry, reply)
        return reply

    def _bury(self, group_id: str, entry: GroupEntry, reply: OneShot[int]) -> None:
        now_ms = self.wall_clock_ms()
        records = [offset_record(group_id, at, None, timestamp_ms=now_ms) for at in entry.offsets.known()]
        records += entry.die(now_ms)
        then = partial(self._buried, group_id, entry, reply=reply)
        self.log.submit(self.partition_of(group_id), records, then, essential=True)

    def _buried(self, group_id: str, entry: GroupEntry, durable: bool, *, reply: OneShot[int]) -> None:
        if self.entries.get(group_id) is not entry:
            pass  # it is coordinated elsewhere
        elif durable:
            del self.entries[group_id]
            entry.offsets.disown()
            self.state_bytes.change(-GROUP_BYTES - len(group_id))
            entry.retire()
            logger.info("group %r is deleted", group_id)
        elif entry.classic is not None:
            entry.classic.revive()
        reply.set(error_codes.NONE if durable else error_codes.COORDINATOR_NOT_AVAILABLE)

    def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> OneShot[int]:
        """Forget these offsets of a group; the error code, once that is durable."""
        entry = self.entries.get(group_id)
        if entry is None:
            return OneShot(error_codes.GROUP_ID_NOT_FOUND)
        return self._forget(group_id, entry, set(partitions))

    def forget_deleted_topics(self, group_id: str, has_topic: Callable[[str], bool]) -> None:
        """Forget the offsets of topics that were deleted before this broker coordinated the group."""
        entry = self.entries[group_id]
        for topic in entry.offsets.topics():
            if not has_topic(topic):
                self._forget(group_id, entry, entry.offsets.of_topic(topic))

    def forget_topic(self, topic: str) -> None:
        """The topic is deleted: a topic of the same name will have offsets of its own."""
        for group_id, entry in self.entries.items():
            if partitions := entry.offsets.of_topic(topic):
                self._forget(group_id, entry, partitions)

    def _forget(self, group_id: str, entry: GroupEntry, partitions: set[TopicPartition]) -> OneShot[int]:
        reply: OneShot[int] = OneShot()
        doomed = PendingChange(entry.offsets.known_of(partitions))
        if not doomed.partitions:
            reply.set(error_codes.NONE)
            return reply
        now_ms = self.wall_clock_ms()
        records = [offset_record(group_id, at, None, timestamp_ms=now_ms) for at in doomed.partitions]
        then = partial(self._forgotten, entry, doomed, reply=reply)
        self.log.submit(self.partition_of(group_id), records, then, placed=doomed.placed, essential=True)
        return reply

    def _forgotten(self, entry: GroupEntry, doomed: PendingChange, durable: bool, *, reply: OneShot[int]) -> None:
        if durable:
            entry.offsets.forget(doomed)
        reply.set(error_codes.NONE if durable else error_codes.COORDINATOR_NOT_AVAILABLE)

    async def run(self) -> None:
        """Delete what is past retention, from time to time, until cancelled."""
        while True:
            await trio.sleep(self.settings.offsets_retention_check_interval_ms / 1000)
            for number, (group_id, entry) in enumerate(list(self.entries.items())):
                if number % SWEEP_BATCH_COUNT == 0:
                    await trio.lowlevel.checkpoint()
                self._expire(group_id, entry, self.wall_clock_ms())

    def _expire(self, group_id: str, entry: GroupEntry, now_ms: int) -> None:
        """Forget offsets that are past retention, and an empty group without any left."""
        if entry.is_dead:
            return  # deleted since the sweep began
        expired = entry.expired(now_ms, self.settings.offsets_retention_ms)
        if entry.may_be_deleted_when_unused and len(expired) == len(entry.offsets.known()):
            self._bury(group_id, entry, OneShot())
        elif expired:
            logger.info("%d offsets of group %r have expired", len(expired), group_id)
            self._forget(group_id, entry, expired)
