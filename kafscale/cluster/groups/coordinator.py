"""The group coordinator: every group of this broker, of either protocol, their committed offsets, and their time.

A request is a synchronous call that decides at once. What it waits for (other members, the disk) comes through the
OneShot that it returns. A client that goes away while it waits takes nothing with it: its member stays until its
session ends, and its commits are committed. The state in memory runs ahead of the durable records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import attrs
import trio

from kafscale.cluster.coordinator.partitions import LedPartitions, TopicPartition
from kafscale.cluster.coordinator.writer import RecordWriter, TopicLog
from kafscale.cluster.groups.classic.group import ClassicGroup
from kafscale.cluster.groups.common.context import (
    ASSIGNMENT_MAX_BYTES,
    CONSUMER_PROTOCOL_TYPE,
    GROUP_BYTES,
    MEMBER_EPOCH_SINCE,
    MEMBER_METADATA_MAX_BYTES,
    PROTOCOLS_MAX_COUNT,
    CommittedOffset,
    Downgrade,
    GroupContext,
    GroupMemberIdentity,
    GroupOverrides,
    GroupStateBytes,
    Heartbeat,
    HeartbeatReply,
    Join,
    Rights,
    Sync,
    Then,
    ignore_outcome,
    join_bytes,
    protocols_bytes,
    refused_join,
)
from kafscale.cluster.groups.common.log_records import CoordinatorRecord, offset_record
from kafscale.cluster.groups.common.topics import KnownTopic, KnownTopics
from kafscale.cluster.groups.consumer.group import ConsumerGroup
from kafscale.cluster.groups.consumer.members import JOIN_EPOCH
from kafscale.cluster.groups.deletion import GroupDeletion
from kafscale.cluster.groups.entry import AnyGroup, GroupEntry
from kafscale.cluster.groups.loading import LoadedGroup, LoadedGroups
from kafscale.cluster.groups.offsets import GroupOffsets, OffsetTransactions
from kafscale.cluster.groups.topic_search import RunPiece, TopicSearch, run_in_thread
from kafscale.cluster.registries.topics import Topic, TopicListener, TopicRegistry
from kafscale.concurrency.signals import OneShot
from kafscale.concurrency.timers import TimerQueue
from kafscale.config import Settings
from kafscale.wire import error_codes
from kafscale.wire.internal_topics.consumer_offsets import OffsetCommitValue
from kafscale.wire.messages.groups import JoinGroupResponse, MemberIdentity, SyncGroupResponse

logger = logging.getLogger(__name__)

LEAVE_PIECE_COUNT = 1000  # members that leave at once


def _any_topic(name: str) -> bool:
    return True


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@attrs.define(eq=False, repr=False)
class GroupCoordinator:
    """Coordinates the groups of the partitions that are led here, while `run` runs.

    After `draining` waiting joins and syncs are answered, and no new ones wait. `has_topic` tells by name whether there
    is a topic; offsets of others are deleted when a partition is loaded. `rights` bound the topics that regular
    expressions find.
    """

    _offsets_log: TopicLog
    _settings: Settings
    _draining: trio.Event = attrs.field(kw_only=True)
    _has_topic: Callable[[str], bool] = attrs.field(default=_any_topic, kw_only=True)
    wall_clock_ms: Callable[[], int] = attrs.field(default=_wall_clock_ms, kw_only=True)
    _overrides: Mapping[str, GroupOverrides] = attrs.field(factory=dict, kw_only=True)  # of single groups
    _rights: Rights | None = attrs.field(default=None, kw_only=True)
    _run_piece: RunPiece = attrs.field(default=run_in_thread, kw_only=True)
    _partition_count: Callable[[], int] = attrs.field(kw_only=True)  # of `__consumer_offsets`; 0 if it does not exist
    led: LedPartitions[LoadedGroups] = attrs.field(init=False)
    state_bytes: GroupStateBytes = attrs.field(init=False)
    _entries: dict[str, GroupEntry] = attrs.field(factory=dict, init=False)
    _timers: TimerQueue = attrs.field(factory=TimerQueue, init=False)
    topics: KnownTopics = attrs.field(factory=KnownTopics, init=False)
    _context: GroupContext = attrs.field(init=False)
    _search: TopicSearch = attrs.field(init=False)
    _log: RecordWriter = attrs.field(init=False)
    transactions: OffsetTransactions = attrs.field(init=False)
    deletion: GroupDeletion = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._log = RecordWriter(self._offsets_log)
        self.led = LedPartitions(
            topic="__consumer_offsets",
            known_count=self._partition_count,
            new_state=lambda partition, _leader_epoch: LoadedGroups(partition),
            on_loaded=self._loaded,
            on_resigned=self._resigned,
        )
        self.transactions = OffsetTransactions(
            log=self._log, partition_of=self.led.partition_of, offsets_of=lambda group_id: self._entry(group_id).offsets
        )
        self.state_bytes = GroupStateBytes(self._settings.limits.group_state_bytes)
        self._search = TopicSearch(self.topics, self._rights, self._run_piece)
        self._context = GroupContext(
            settings=self._settings,
            overrides=self._overrides,
            topics=self.topics,
            state_bytes=self.state_bytes,
            timers=self._timers,
            wall_clock_ms=self.wall_clock_ms,
            submit=self._submit,
            search=self._search.ask,
            downgrade=self._downgrade,
            rights=self._rights,
        )
        self.deletion = GroupDeletion(self._entries, self._context)

    # -- Which partitions are led here -------------------------------------------------------------------------------

    def error_code(self, group_id: str) -> int:
        """Return NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS if this broker can't answer for a group, or NONE."""
        return self.led.error_code(group_id) if self.led.has_topic else error_codes.NONE

    def _loaded(self, loaded: LoadedGroups) -> None:
        for group_id, group in loaded.groups.items():
            self._take_over(group_id, group)
        self.transactions.take_over(loaded)
        for group_id in chain(loaded.groups, *loaded.pending.values()):
            self.deletion.forget_deleted_topics(group_id, self._has_topic)
        logger.debug("__consumer_offsets-%d: coordinating %d groups", loaded.partition, len(loaded.groups))
        if loaded.unknown_count:
            logger.warning(
                "__consumer_offsets-%d: ignoring %d records of types that this version does not know",
                *(loaded.partition, loaded.unknown_count),
            )
        loaded.clear()

    def _take_over(self, group_id: str, loaded: LoadedGroup) -> None:
        entry = self._entry(group_id)
        for at, logged in loaded.offsets.items():
            entry.offsets.put(at, logged.offset)
        if loaded.consumer:
            entry.group = ConsumerGroup.restored(group_id, loaded.consumer.values(), self._context)
        elif loaded.record is not None and entry.classic is not None:
            entry.classic.restore(loaded.record)

    def _resigned(self, loaded: LoadedGroups) -> None:
        partition = loaded.partition
        self._log.resign(partition)
        self.transactions.resign(partition)
        for group_id in [group_id for group_id in self._entries if self.led.partition_of(group_id) == partition]:
            self.deletion.forget_entry(group_id)

    def _submit(
        self, group_id: str, records: Sequence[CoordinatorRecord], then: Then, *, essential: bool = True, **more: Any
    ) -> None:
        """Write records of a group. Essential ones wait for room; without them no member could come, and read."""
        now_ms = self.wall_clock_ms()
        encoded = [record.encode(now_ms) for record in records]
        self._log.submit(self.led.partition_of(group_id), encoded, then, essential=essential, **more)

    async def run(
        self, *, serving: trio.Event | None = None, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep time until cancelled; sessions begin when `serving` happens, if it is given."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._log.run)
            nursery.start_soon(self.deletion.run)
            nursery.start_soon(self._search.run)
            keeping_time = trio.CancelScope()
            nursery.start_soon(self._keep_time, keeping_time, serving)
            task_status.started()
            await self._draining.wait()
            # The members' time stands still, so that they are all there after a restart.
            keeping_time.cancel()
            for group in self.groups():
                if isinstance(group, ClassicGroup):
                    group.answer_all(error_codes.COORDINATOR_NOT_AVAILABLE)

    async def _keep_time(self, scope: trio.CancelScope, serving: trio.Event | None) -> None:
        with scope:
            if serving is not None:
                await serving.wait()
            for group in self.groups():
                group.restart_sessions()  # no member could send a heartbeat before
            await self._timers.run()

    def follow_topics(self, registry: TopicRegistry) -> None:
        """Learn all topics, once they are loaded, and every change from now on, for the next heartbeats of members."""

        def known(topic: Topic) -> KnownTopic:
            return KnownTopic(topic_id=topic.topic_id, name=topic.name, partition_count=topic.partition_count)

        def put(topic: Topic) -> None:
            if self.topics.by_name.get(topic.name) != known(topic):  # not for another config only
                self.topics.change(version=registry.revision, put=[known(topic)])

        def remove(topic: Topic) -> None:
            self.topics.change(version=registry.revision, removed=[topic.name])

        self.topics.change(version=registry.revision, put=map(known, registry.all()))
        registry.follow(TopicListener(on_created=put, on_changed=put, on_deleted=remove))

    # -- The rebalance protocol --------------------------------------------------------------------------------------

    def join(self, group_id: str, join: Join) -> OneShot[JoinGroupResponse]:
        """Handle a JoinGroup; a consumer group without members becomes a classic one."""
        error_code = self._refuse_join(group_id, join)
        if error_code != error_codes.NONE:
            return OneShot(refused_join(error_code, join.member_id))
        entry = self._entry(group_id)
        if isinstance(entry.group, ConsumerGroup) and entry.group.is_empty:
            former = entry.group
            self._submit(group_id, former.die(), ignore_outcome)
            former.retire()
            entry.group = ClassicGroup(group_id, self._context)
        return entry.group.join(join)

    def consumer_heartbeat(self, group_id: str, request: Heartbeat) -> OneShot[HeartbeatReply]:
        """Handle a ConsumerGroupHeartbeat; epoch 0 makes a group, also of a classic one."""
        if (refusal := self._refuse_heartbeat(group_id, request)) is not None:
            return OneShot(refusal)
        entry = self._entries.get(group_id)
        if entry is not None and isinstance(entry.group, ConsumerGroup):
            return entry.group.consumer_heartbeat(request)
        former = None if entry is None else entry.classic
        begun, reply = ConsumerGroup.begin(group_id, former, request, self._context)
        if begun is not None:
            if former is not None:
                logger.info("group %r is a consumer group now", group_id)
                former.retire(error_codes.REBALANCE_IN_PROGRESS)
            self._entry(group_id).group = begun
        return reply

    def _refuse_heartbeat(self, group_id: str, request: Heartbeat) -> HeartbeatReply | None:
        entry = self._entries.get(group_id)
        if self._draining.is_set() or not self.led.has_topic or (entry is not None and entry.group.is_dead):
            return HeartbeatReply(error_code=error_codes.COORDINATOR_NOT_AVAILABLE)
        is_consumer = entry is not None and entry.consumer is not None
        if not is_consumer and request.member_epoch != JOIN_EPOCH:
            message = f"Group {group_id} is not a consumer group." if entry else f"Consumer group {group_id} not found."
            return HeartbeatReply(error_code=error_codes.GROUP_ID_NOT_FOUND, error_message=message)
        if entry is not None:
            return None
        if self._is_full:
            message = f"There are {len(self._entries)} groups already, as many as are allowed."
            return HeartbeatReply(error_code=error_codes.POLICY_VIOLATION, error_message=message)
        if not self._has_room(GROUP_BYTES + len(group_id)):
            return HeartbeatReply(error_code=error_codes.COORDINATOR_NOT_AVAILABLE)
        return None

    def _downgrade(self, group_id: str, downgrade: Downgrade) -> None:
        """Put a classic group into the place of a consumer group, as the log has been told."""
        logger.info("group %r is a classic group now: %s", group_id, downgrade.reason)
        entry = self._entries[group_id]
        entry.group.retire()
        entry.group = group = ClassicGroup(group_id, self._context)
        group.restore(downgrade.group, downgrade.protocols)
        if downgrade.rebalances:
            group.rebalance(downgrade.reason)

    def _refuse_join(self, group_id: str, join: Join) -> int:
        if self._draining.is_set() or not self.led.has_topic:
            return error_codes.COORDINATOR_NOT_AVAILABLE
        if not group_id:
            return error_codes.INVALID_GROUP_ID
        bounds = self._settings.coordinator
        least_ms, most_ms = bounds.group_min_session_timeout_ms, bounds.group_max_session_timeout_ms
        if not least_ms <= join.session_timeout_ms <= most_ms:
            return error_codes.INVALID_SESSION_TIMEOUT
        if len(join.protocols) > PROTOCOLS_MAX_COUNT or protocols_bytes(join.protocols) > MEMBER_METADATA_MAX_BYTES:
            return error_codes.INVALID_REQUEST
        entry = self._entries.get(group_id)
        more_bytes = GROUP_BYTES + len(group_id) + join_bytes(join) if entry is None else entry.group.more_bytes(join)
        if not self._has_room(more_bytes):
            return error_codes.COORDINATOR_NOT_AVAILABLE
        consumer = None if entry is None else entry.consumer
        if consumer is not None and consumer.is_dead:
            return error_codes.COORDINATOR_NOT_AVAILABLE
        if join.member_id and (entry is None or (consumer is not None and consumer.is_empty)):
            return error_codes.UNKNOWN_MEMBER_ID
        return error_codes.POLICY_VIOLATION if entry is None and self._is_full else error_codes.NONE

    def _has_room(self, more_bytes: int) -> bool:
        return self.state_bytes.has_room_or_say_so(more_bytes, now_seconds=trio.current_time())

    def abandon_join(self, group_id: str, reply: OneShot[JoinGroupResponse]) -> None:
        """Drop a join whose client has gone."""
        entry = self._entries.get(group_id)
        if entry is not None and entry.classic is not None and not self._draining.is_set():
            entry.classic.abandon_join(reply)

    def sync(self, group_id: str, sync: Sync) -> OneShot[SyncGroupResponse]:
        error_code = error_codes.NONE
        entry = self._entries.get(group_id)
        if self._draining.is_set():
            error_code = error_codes.COORDINATOR_NOT_AVAILABLE
        elif not group_id:
            error_code = error_codes.INVALID_GROUP_ID
        elif entry is None:
            error_code = error_codes.UNKNOWN_MEMBER_ID
        elif (assigned_bytes := sum(map(len, sync.assignments.values()))) > ASSIGNMENT_MAX_BYTES:
            error_code = error_codes.INVALID_REQUEST
        elif entry.classic is not None and not self._has_room(assigned_bytes - entry.classic.assigned_bytes):
            error_code = error_codes.COORDINATOR_NOT_AVAILABLE
        else:
            return entry.group.sync(sync)
        return OneShot(SyncGroupResponse(error_code=error_code))

    def heartbeat(self, group_id: str, identity: GroupMemberIdentity) -> int:
        """Return the error code. Nothing is written."""
        entry = self._entries.get(group_id)
        if entry is None:
            return error_codes.UNKNOWN_MEMBER_ID if group_id else error_codes.INVALID_GROUP_ID
        return entry.group.heartbeat(identity)

    async def leave(self, group_id: str, leavers: Sequence[MemberIdentity]) -> list[int]:
        """Return an error code for each, once the group without them is durable."""
        entry = self._entries.get(group_id)
        if entry is None:
            return [error_codes.UNKNOWN_MEMBER_ID] * len(leavers)
        outcome: list[int] = []
        for start in range(0, len(leavers), LEAVE_PIECE_COUNT):
            if start:
                await trio.lowlevel.checkpoint()
            outcome += entry.group.leave(leavers[start : start + LEAVE_PIECE_COUNT])
        await self._log.wait_settled(self.led.partition_of(group_id))
        return outcome

    # -- Committed offsets -------------------------------------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        identity: GroupMemberIdentity,
        offsets: Mapping[TopicPartition, OffsetCommitValue],
        *,
        version: int = MEMBER_EPOCH_SINCE,
    ) -> OneShot[int]:
        """Commit all offsets or none; the code comes once durable. Without a generation (-1) the group is made."""
        if (error_code := self._refuse_commit(group_id, identity, offsets, version=version)) != error_codes.NONE:
            return OneShot(error_code)
        entry = self._entry(group_id)
        if entry.classic is not None:
            entry.classic.touch(identity.member_id)
        reply: OneShot[int] = OneShot()
        change = entry.offsets.begin(offsets.keys())
        records = [offset_record(group_id, at, offset) for at, offset in offsets.items()]

        def then(durable: bool) -> None:
            entry.offsets.finish(offsets, durable)
            if not reply.is_set:
                reply.set(error_codes.NONE if durable else error_codes.COORDINATOR_NOT_AVAILABLE)

        def late() -> None:  # clients retry after this error
            if not reply.is_set:
                reply.set(error_codes.COORDINATOR_NOT_AVAILABLE)

        self._submit(group_id, records, then, essential=False, late=late, placed=change.placed)
        return reply

    def _refuse_commit(
        self,
        group_id: str,
        identity: GroupMemberIdentity,
        offsets: Mapping[TopicPartition, OffsetCommitValue],
        *,
        version: int = MEMBER_EPOCH_SINCE,
        is_transactional: bool = False,
    ) -> int:
        entry = self._entries.get(group_id)
        held = GroupOffsets() if entry is None else entry.offsets
        more_bytes = held.more_bytes(offsets) + (GROUP_BYTES + len(group_id) if entry is None else 0)
        if not self._has_room(more_bytes) or not self.led.has_topic:
            return error_codes.COORDINATOR_NOT_AVAILABLE
        if entry is not None:
            return entry.group.check_commit(identity, version, is_transactional=is_transactional)
        if identity.generation_id >= 0:
            return error_codes.ILLEGAL_GENERATION
        return error_codes.POLICY_VIOLATION if self._is_full else error_codes.NONE

    # -- Offsets that transactions commit ----------------------------------------------------------------------------

    def check_transactional_commit(
        self, group_id: str, identity: GroupMemberIdentity, offsets: Mapping[TopicPartition, OffsetCommitValue]
    ) -> int:
        """Return the error code of a commit in a transaction, which `transactions` records if it is appended."""
        if (error_code := self.error_code(group_id)) != error_codes.NONE:
            return error_code
        return self._refuse_commit(group_id, identity, offsets, is_transactional=True)

    def is_unstable(self, group_id: str, at: TopicPartition) -> bool:
        """Tell whether a transaction whose end is not durable has committed an offset there."""
        entry = self._entries.get(group_id)
        return entry is not None and entry.offsets.is_unstable(at)

    # -- Reading them ------------------------------------------------------------------------------------------------

    def offsets(self, group_id: str) -> Mapping[str, Mapping[int, OffsetCommitValue]]:
        """Return the durable offsets of a group by topic and partition."""
        entry = self._entries.get(group_id)
        return entry.offsets.by_topic if entry is not None and not entry.group.is_dead else {}

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> int:
        """Return the error code of a fetch of committed offsets; None and -1: by a client outside of the group."""
        entry = self._entries.get(group_id)
        return error_codes.NONE if entry is None else entry.group.check_fetch(member_id, member_epoch)

    def committed_offsets(self) -> Iterator[CommittedOffset]:
        """Yield every group's durable offsets, for metrics; they may change meanwhile."""
        for group_id, entry in list(self._entries.items()):
            for topic, partitions in list(entry.offsets.by_topic.items()):
                for partition, offset in list(partitions.items()):
                    yield CommittedOffset(group_id, topic, partition, offset.offset)

    def is_metadata_too_large(self, metadata: str | None) -> bool:
        return metadata is not None and len(metadata) > self._settings.limits.offset_metadata_max_bytes

    # -- Administration ----------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> ClassicGroup | None:
        """Return a classic group; a caller must not change it."""
        entry = self._entries.get(group_id)
        return entry.classic if entry is not None else None

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """Return a consumer group; a caller must not change it."""
        entry = self._entries.get(group_id)
        return entry.consumer if entry is not None and not entry.group.is_dead else None

    def exists(self, group_id: str) -> bool:
        """Tell whether there is such a group, of either protocol."""
        entry = self._entries.get(group_id)
        return entry is not None and not entry.group.is_dead

    def is_subscribed_to(self, group_id: str, topic: str) -> bool:
        entry = self._entries.get(group_id)
        return entry is not None and entry.group.is_subscribed_to(topic)

    def groups(self) -> Iterator[AnyGroup]:
        """Return all groups; a caller must not change them."""
        return (entry.group for entry in self._entries.values() if not entry.group.is_dead)

    async def wait_settled(self, group_id: str) -> None:
        """Wait until all changes of a group are durable."""
        if self.led.has_topic:
            await self._log.wait_settled(self.led.partition_of(group_id))

    def check_offset_deletion(self, group_id: str) -> int:
        """Return the error code of an OffsetDelete for the group as a whole."""
        entry = self._entries.get(group_id)
        if entry is None or entry.group.is_dead:
            return error_codes.GROUP_ID_NOT_FOUND
        if not entry.group.is_empty and entry.group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return error_codes.NON_EMPTY_GROUP  # the topics of its members are not known
        return error_codes.NONE

    @property
    def _is_full(self) -> bool:
        return len(self._entries) >= self._settings.limits.max_groups_count

    def _entry(self, group_id: str) -> GroupEntry:
        entry = self._entries.get(group_id)
        if entry is None:
            group = ClassicGroup(group_id, self._context)
            entry = self._entries[group_id] = GroupEntry(group=group, offsets=GroupOffsets(self.state_bytes))
            self.state_bytes.change(GROUP_BYTES + len(group_id))
        return entry
