"""Deletion of groups and committed offsets: on request, with their topic, and past retention."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

import attrs
import trio

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups.classic.group import ClassicGroup, ClassicGroupState
from kafscale.cluster.groups.common.context import GROUP_BYTES, OFFSETS_RETENTION_CHECK_INTERVAL_MS, GroupContext
from kafscale.cluster.groups.common.log_records import offset_record
from kafscale.cluster.groups.entry import GroupEntry
from kafscale.cluster.groups.offsets import PendingChange
from kafscale.concurrency.signals import OneShot
from kafscale.wire import error_codes
from kafscale.wire.internal_topics.consumer_offsets import NO_EXPIRY, OffsetCommitValue

logger = logging.getLogger(__name__)

SWEEP_BATCH_COUNT = 100  # groups that the retention sweep looks at before it lets others run


@attrs.define(eq=False, repr=False)
class GroupDeletion:
    """Deletes from `entries`, the groups of a coordinator by id."""

    entries: dict[str, GroupEntry]
    context: GroupContext

    def delete_group(self, group_id: str) -> OneShot[int]:
        """Delete an empty group with its offsets; the error code comes once that is durable."""
        entry = self.entries.get(group_id)
        if entry is None or entry.group.is_dead:
            return OneShot(error_codes.GROUP_ID_NOT_FOUND)
        if not entry.group.is_empty:
            return OneShot(error_codes.NON_EMPTY_GROUP)
        return self._delete(group_id, entry)

    def _delete(self, group_id: str, entry: GroupEntry) -> OneShot[int]:
        reply: OneShot[int] = OneShot()
        records = [offset_record(group_id, at, None) for at in entry.offsets.known()]
        records += entry.group.die()
        self.context.submit(group_id, records, partial(self._deleted, group_id, entry, reply=reply))
        return reply

    def _deleted(self, group_id: str, entry: GroupEntry, durable: bool, *, reply: OneShot[int]) -> None:
        if self.entries.get(group_id) is not entry:
            pass  # it is coordinated elsewhere
        elif durable:
            self.forget_entry(group_id)
            logger.info("group %r is deleted", group_id)
        elif entry.classic is not None:
            entry.classic.revive()
        reply.set(error_codes.NONE if durable else error_codes.COORDINATOR_NOT_AVAILABLE)

    def forget_entry(self, group_id: str) -> None:
        """Remove a group that is deleted, or coordinated by another broker, and answer its members."""
        entry = self.entries.pop(group_id)
        entry.group.retire()
        entry.offsets.disown()
        self.context.state_bytes.change(-GROUP_BYTES - len(group_id))

    def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> OneShot[int]:
        """Delete these offsets of a group; the error code comes once that is durable."""
        entry = self.entries.get(group_id)
        if entry is None:
            return OneShot(error_codes.GROUP_ID_NOT_FOUND)
        return self._forget(group_id, entry, set(partitions))

    def forget_deleted_topics(self, group_id: str, has_topic: Callable[[str], bool]) -> None:
        """Delete the offsets of topics that were deleted before this broker coordinated the group."""
        entry = self.entries[group_id]
        for topic in entry.offsets.topics():
            if not has_topic(topic):
                self._forget(group_id, entry, entry.offsets.of_topic(topic))

    def forget_topic(self, topic: str) -> None:
        """Delete all offsets of a deleted topic: a topic of the same name will have offsets of its own."""
        for group_id, entry in self.entries.items():
            if partitions := entry.offsets.of_topic(topic):
                self._forget(group_id, entry, partitions)

    def _forget(self, group_id: str, entry: GroupEntry, partitions: set[TopicPartition]) -> OneShot[int]:
        reply: OneShot[int] = OneShot()
        doomed = PendingChange(entry.offsets.known_of(partitions))
        if not doomed.partitions:
            reply.set(error_codes.NONE)
            return reply
        records = [offset_record(group_id, at, None) for at in doomed.partitions]
        then = partial(self._forgotten, entry, doomed, reply=reply)
        self.context.submit(group_id, records, then, placed=doomed.placed)
        return reply

    def _forgotten(self, entry: GroupEntry, doomed: PendingChange, durable: bool, *, reply: OneShot[int]) -> None:
        if durable:
            entry.offsets.forget(doomed)
        reply.set(error_codes.NONE if durable else error_codes.COORDINATOR_NOT_AVAILABLE)

    async def run(self) -> None:
        """Delete offsets and groups past retention, from time to time, until cancelled."""
        while True:
            await trio.sleep(OFFSETS_RETENTION_CHECK_INTERVAL_MS / 1000)
            for number, (group_id, entry) in enumerate(list(self.entries.items())):
                if number % SWEEP_BATCH_COUNT == 0:
                    await trio.lowlevel.checkpoint()
                self._expire(group_id, entry)

    def _expire(self, group_id: str, entry: GroupEntry) -> None:
        group = entry.group
        if group.is_dead:
            return  # deleted since the sweep began
        expired = _expired(entry, self.context.wall_clock_ms(), self.context.settings.coordinator.offsets_retention_ms)
        is_awaited = isinstance(group, ClassicGroup) and group.members.pending_join
        if group.is_empty and not is_awaited and len(expired) == len(entry.offsets.known()):
            self._delete(group_id, entry)
        elif expired:
            logger.info("%d offsets of group %r have expired", len(expired), group_id)
            self._forget(group_id, entry, expired)


def _expired(entry: GroupEntry, now_ms: int, retention_ms: int) -> set[TopicPartition]:
    """Return the partitions whose committed offsets are past retention.

    It is counted from when a classic group lost its last member. It is counted from the commit if a classic group never
    had a member, for topics that none of its members reads, and in a group of Kafka 4's protocol, as there.
    """
    group = entry.group
    since_ms: int | None = None
    if isinstance(group, ClassicGroup) and group.protocol_type is not None:
        if group.is_empty:
            since_ms = group.state_timestamp_ms
        elif group.state is not ClassicGroupState.STABLE or group.subscribed_topics is None:
            return set()
    pending = entry.offsets.pending()
    return {
        at
        for at, offset in entry.offsets
        if now_ms >= _expires_ms(offset, since_ms, retention_ms)
        and at not in pending
        and not group.is_subscribed_to(at.topic)
    }


def _expires_ms(offset: OffsetCommitValue, since_ms: int | None, retention_ms: int) -> int:
    if offset.expire_timestamp_ms != NO_EXPIRY:
        return offset.expire_timestamp_ms
    return (offset.commit_timestamp_ms if since_ms is None else since_ms) + retention_ms
