"""The group coordinator: every consumer group of this broker, their committed offsets, and their time.

A request is a synchronous call that decides at once; what it has to wait for (other members, the disk) comes through
the OneShot that it returns. So a client that goes away while it waits takes nothing with it: its member stays until
its session ends, and what it committed is committed. `run` owns a task for all deadlines, and one for retention, and
those that write what is submitted (`group_log`).

A group's state is in the partition of `__consumer_offsets` that its id hashes to, and its coordinator is the leader of
that partition: `begin_loading`, `take_over` and `resign` say which ones are led here. The state in memory runs ahead of
what is durable, and nobody but the coordinator changes it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

import attrs
import trio

from kafscale.cluster.groups.events import CONSUMER_PROTOCOL_TYPE, Identity, Join, JoinResult, Leaving, Sync, SyncResult
from kafscale.cluster.groups.group import Group, GroupContext, GroupState
from kafscale.cluster.groups.group_log import GroupLog, OffsetsLog, Then
from kafscale.cluster.groups.led_partitions import LedPartitions
from kafscale.cluster.groups.loading import GroupsLoading, LoadedGroup
from kafscale.cluster.groups.log_records import group_record, offset_record
from kafscale.cluster.groups.offset_transactions import OffsetTransactions
from kafscale.cluster.groups.offsets import GroupOffsets, PendingChange
from kafscale.cluster.groups.records import NO_TOPIC_ID, GroupRecord, OffsetAndMetadata, TopicPartition
from kafscale.cluster.groups.settings import (
    ASSIGNMENT_MAX_BYTES,
    GROUP_ID_MAX_COUNT,
    MEMBER_METADATA_MAX_BYTES,
    PROTOCOLS_MAX_COUNT,
    GroupSettings,
)
from kafscale.cluster.groups.state_bytes import GROUP_BYTES, GroupStateBytes, join_bytes, protocols_bytes
from kafscale.concurrency.oneshot import OneShot
from kafscale.concurrency.timers import TimerQueue
from kafscale.wire import error_codes

logger = logging.getLogger(__name__)

TELL_FULL_EVERY_SECONDS = 60.0
COMMIT_PIECE_COUNT = 1000  # offsets of one transaction: 2 ms of the event loop
LEAVE_PIECE_COUNT = 1000  # members that leave at once
SWEEP_BATCH_COUNT = 100  # groups that the retention sweep looks at before it lets others run


@attrs.frozen
class CommittedOffset:
    """One line of what `committed_offsets` gives."""

    group_id: str
    topic: str
    partition: int
    offset: int


@attrs.define(eq=False, kw_only=True)
class _Entry:
    group: Group
    offsets: GroupOffsets


def _any_topic(name: str) -> bool:
    return True


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@attrs.define(eq=False)
class GroupCoordinator:
    """Made with its settings, usable while `run` runs, for the groups of the partitions that are led here.

    `draining`: when it happens, waiting joins and syncs are answered, and no new ones wait. `has_topic` tells by name
    whether there is a topic; offsets of others are forgotten when a partition is taken over.
    """

    _offsets_log: OffsetsLog
    _settings: GroupSettings
    _draining: trio.Event = attrs.field(kw_only=True)
    _has_topic: Callable[[str], bool] = attrs.field(default=_any_topic, kw_only=True)
    _wall_clock_ms: Callable[[], int] = attrs.field(default=_wall_clock_ms, kw_only=True)
    led: LedPartitions = attrs.field(factory=LedPartitions, init=False)
    state_bytes: GroupStateBytes = attrs.field(init=False)
    _entries: dict[str, _Entry] = attrs.field(factory=dict, init=False)
    _timers: TimerQueue = attrs.field(factory=TimerQueue, init=False)
    _context: GroupContext = attrs.field(init=False)
    _log: GroupLog = attrs.field(init=False)
    transactions: OffsetTransactions = attrs.field(init=False)
    _told_full_at: float = attrs.field(default=-math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self._log = GroupLog(self._offsets_log)
        self.transactions = OffsetTransactions(
            log=self._log, partition_of=self.led.partition_of, offsets_of=lambda group_id: self._entry(group_id).offsets
        )
        self.state_bytes = GroupStateBytes(self._settings.state_max_bytes)
        self._context = GroupContext(
            settings=self._settings,
            timers=self._timers,
            submit=self._submit_group,
            wall_clock_ms=self._wall_clock_ms,
            state_bytes=self.state_bytes,
        )

    # -- Which partitions are led here -------------------------------------------------------------------------------

    def error_code(self, group_id: str) -> int:
        """Return why a group can't be asked for here now: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, or NONE."""
        return self.led.error_code(group_id)

    def begin_loading(self, partition: int, leader_epoch: int, *, partition_count: int) -> GroupsLoading:
        """This broker leads a partition from now on. What was known of it before is void."""
        self.resign(partition)
        return self.led.begin_loading(partition, leader_epoch, partition_count=partition_count)

    def take_over(self, loading: GroupsLoading) -> None:
        """All of a partition has been read: coordinate its groups, unless it was given up meanwhile."""
        if not self.led.finish_loading(loading):
            return
        for group_id, loaded in loading.groups.items():
            self._take_over(group_id, loaded)
        self.transactions.take_over(loading)
        for group_id in chain(loading.groups, *loading.pending.values()):
            self._forget_deleted_topics(group_id, self._entries[group_id])
        logger.debug("%d groups of __consumer_offsets-%d are coordinated here", len(loading.groups), loading.partition)
        if loading.skipped:
            logger.warning("__consumer_offsets-%d has records of no use here: %s", loading.partition, loading.skipped)

    def _take_over(self, group_id: str, loaded: LoadedGroup) -> None:
        entry = self._entry(group_id)
        for at, logged in loaded.offsets.items():
            entry.offsets.put(at, logged.offset)
        if loaded.record is not None:
            entry.group.restore(loaded.record)

    def _forget_deleted_topics(self, group_id: str, entry: _Entry) -> None:
        """A topic may have been deleted while nobody could forget its offsets."""
        for topic in entry.offsets.topics():
            if not self._has_topic(topic):
                self._forget(group_id, entry, entry.offsets.of_topic(topic))

    def resign(self, partition: int) -> None:
        """This broker does not lead a partition any more: forget its groups, and send their members elsewhere."""
        self.led.resign(partition)
        self.transactions.resign(partition)
        doomed = [group_id for group_id in self._entries if self.led.partition_of(group_id) == partition]
        for group_id in doomed:
            entry = self._entries.pop(group_id)
            entry.group.resign()
            entry.offsets.disown()
            self.state_bytes.change(-GROUP_BYTES - len(group_id))

    def _submit_group(self, group_id: str, record: GroupRecord, then: Then) -> None:
        written = group_record(group_id, record, timestamp_ms=self._wall_clock_ms())
        # Essential: or no member could come, and read, for want of room.
        self._log.submit(self.led.partition_of(group_id), [written], then, essential=True)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep time, until cancelled.

        The sessions of members that were restored begin now, however long the rest of the start took.
        """
        for entry in self._entries.values():
            entry.group.restart_sessions()
        async with trio.open_nursery() as nursery:
            await nursery.start(self._log.run)
            nursery.start_soon(self._sweep)
            keeping_time = trio.CancelScope()
            nursery.start_soon(self._keep_time, keeping_time)
            task_status.started()
            await self._draining.wait()
            # The members' time stands still, so that they are all there after a restart.
            keeping_time.cancel()
            for entry in self._entries.values():
                entry.group.drain()

    async def _keep_time(self, scope: trio.CancelScope) -> None:
        with scope:
            await self._timers.run()

    # -- The rebalance protocol --------------------------------------------------------------------------------------

    def join(self, group_id: str, join: Join) -> OneShot[JoinResult]:
        error_code = self._refuse_join(group_id, join)
        if error_code == error_codes.NONE:
            return self._entry(group_id).group.join(join)
        return OneShot(JoinResult(error_code=error_code, member_id=join.member_id))

    def _refuse_join(self, group_id: str, join: Join) -> int:
        if self._draining.is_set() or not self.led.has_topic:
            return error_codes.COORDINATOR_NOT_AVAILABLE
        if not 0 < len(group_id) <= GROUP_ID_MAX_COUNT:
            return error_codes.INVALID_GROUP_ID
        settings = self._settings
        if not settings.min_session_timeout_ms <= join.session_timeout_ms <= settings.max_session_timeout_ms:
            return error_codes.INVALID_SESSION_TIMEOUT
        if len(join.protocols) > PROTOCOLS_MAX_COUNT or protocols_bytes(join.protocols) > MEMBER_METADATA_MAX_BYTES:
            return error_codes.INVALID_REQUEST
        if not self._has_room(self._more_bytes(group_id, join)):
            return error_codes.COORDINATOR_NOT_AVAILABLE
        if group_id not in self._entries:
            if join.member_id:
                return error_codes.UNKNOWN_MEMBER_ID
            if self._is_full:
                return error_codes.POLICY_VIOLATION
        return error_codes.NONE

    def _more_bytes(self, group_id: str, join: Join) -> int:
        """Return by how many bytes a join would make the state grow."""
        entry = self._entries.get(group_id)
        if entry is None:
            return GROUP_BYTES + len(group_id) + join_bytes(join)
        member = entry.group.members.get(join.member_id)
        return join_bytes(join) - (0 if member is None else member.counted_bytes - len(member.assignment))

    def _has_room(self, more_bytes: int) -> bool:
        """Tell whether the state of groups may grow by so much; if not, the log says so, once a minute."""
        if self.state_bytes.has_room(more_bytes):
            return True
        now = trio.current_time()
        if now - self._told_full_at >= TELL_FULL_EVERY_SECONDS:
            self._told_full_at = now
            logger.warning(
                "the state of consumer groups takes %d bytes, and --group-state-bytes allows %d: "
                "new members and offsets are refused until others have expired or been deleted",
                *(self.state_bytes.used_bytes, self.state_bytes.max_bytes),
            )
        return False

    def abandon_join(self, group_id: str, reply: OneShot[JoinResult]) -> None:
        """Whoever waited for the answer to a join has gone."""
        entry = self._entries.get(group_id)
        if entry is not None and not self._draining.is_set():
            entry.group.abandon_join(reply)

    def sync(self, group_id: str, sync: Sync) -> OneShot[SyncResult]:
        error_code = error_codes.NONE
        entry = self._entries.get(group_id)
        if self._draining.is_set():
            error_code = error_codes.COORDINATOR_NOT_AVAILABLE
        elif not group_id:
            error_code = error_codes.INVALID_GROUP_ID
        elif entry is None:
            error_code = error_codes.UNKNOWN_MEMBER_ID
        elif sum(map(len, sync.assignments.values())) > ASSIGNMENT_MAX_BYTES:
            error_code = error_codes.INVALID_REQUEST
        elif not self._has_room(sum(map(len, sync.assignments.values())) - _assigned_bytes(entry.group)):
            error_code = error_codes.COORDINATOR_NOT_AVAILABLE
        else:
            return entry.group.sync(sync)
        return OneShot(SyncResult(error_code=error_code))

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, *, generation_id: int) -> int:
        """The error code. Nothing is written."""
        entry = self._entries.get(group_id)
        if entry is None:
            return error_codes.UNKNOWN_MEMBER_ID if group_id else error_codes.INVALID_GROUP_ID
        return entry.group.heartbeat(member_id, group_instance_id, generation_id)

    async def leave(self, group_id: str, leavers: Sequence[Leaving]) -> list[int]:
        """An error code for each, once it is durable that a group has become empty."""
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
        self, group_id: str, identity: Identity, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> OneShot[int]:
        """Commit offsets, all or none; the error code, once they are durable.

        A group that does not exist is made for one who is no member of anything (generation -1).
        """
        if (error_code := self._refuse_commit(group_id, identity, offsets)) != error_codes.NONE:
            return OneShot(error_code)
        entry = self._entry(group_id)
        if entry.group.state is not GroupState.EMPTY:
            entry.group.touch(identity.member_id)
        reply: OneShot[int] = OneShot()
        change = entry.offsets.begin(offsets.keys())
        now_ms = self._wall_clock_ms()
        records = [offset_record(group_id, at, offset, timestamp_ms=now_ms) for at, offset in offsets.items()]
        then = partial(self._committed, entry, offsets, reply=reply)
        late = partial(_answer_late, reply)
        self._log.submit(self.led.partition_of(group_id), records, then, late=late, placed=change.placed)
        return reply

    async def commit_in_pieces(
        self,
        group_id: str,
        identity: Identity,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        check: Callable[[TopicPartition], int] = lambda at: error_codes.NONE,
    ) -> Mapping[TopicPartition, int]:
        """Commit however many offsets, as `commit` does; return an error code for each of those that are not committed.

        More than COMMIT_PIECE_COUNT are committed so many at a time, in order. After an error of a piece no more are
        tried. `check` gives the error code of a partition when its piece is about to be committed: while the ones
        before it were, its topic may have been deleted.
        """
        refused: dict[TopicPartition, int] = {}
        pending = list(offsets)
        for start in range(0, len(pending), COMMIT_PIECE_COUNT):
            piece = pending[start : start + COMMIT_PIECE_COUNT]
            refused |= {at: error_code for at in piece if (error_code := check(at)) != error_codes.NONE}
            wanted = {at: offsets[at] for at in piece if at not in refused}
            error_code = await self.commit(group_id, identity, wanted).wait() if wanted else error_codes.NONE
            if error_code != error_codes.NONE:
                return dict.fromkeys(pending[start:], error_code) | refused
        return refused

    def _refuse_commit(
        self,
        group_id: str,
        identity: Identity,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        is_transactional: bool = False,
    ) -> int:
        entry = self._entries.get(group_id)
        held = GroupOffsets() if entry is None else entry.offsets
        if not self._has_room(held.more_bytes(offsets) + (GROUP_BYTES if entry is None else 0)):
            return error_codes.COORDINATOR_NOT_AVAILABLE
        if not self.led.has_topic:
            return error_codes.COORDINATOR_NOT_AVAILABLE
        if entry is not None:
            check = entry.group.check_transactional_commit if is_transactional else entry.group.check_commit
            return check(identity.member_id, identity.group_instance_id, identity.generation_id)
        if len(group_id) > GROUP_ID_MAX_COUNT:
            return error_codes.INVALID_GROUP_ID
        if identity.generation_id >= 0:
            return error_codes.ILLEGAL_GENERATION
        return (
            error_codes.POLICY_VIOLATION if len(self._entries) >= self._settings.max_group_count else error_codes.NONE
        )

    def _committed(
        self,
        entry: _Entry,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        durable: bool,
        *,
        reply: OneShot[int],
    ) -> None:
        entry.offsets.finish(offsets, durable)
        if not reply.is_set:
            reply.set(error_codes.NONE if durable else error_codes.COORDINATOR_NOT_AVAILABLE)

    # -- Offsets that transactions commit ----------------------------------------------------------------------------

    def check_transactional_commit(
        self, group_id: str, identity: Identity, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> int:
        """Return the error code for one who wants to commit these in a transaction; `transactions` is told if it is."""
        if (error_code := self.error_code(group_id)) != error_codes.NONE:
            return error_code
        return self._refuse_commit(group_id, identity, offsets, is_transactional=True)

    def is_unstable(self, group_id: str, at: TopicPartition) -> bool:
        """Tell whether a transaction has committed an offset there, and it is not known for good whether it counts."""
        entry = self._entries.get(group_id)
        return entry is not None and entry.offsets.is_unstable(at)

    # -- Reading them ------------------------------------------------------------------------------------------------

    def offsets(self, group_id: str) -> Mapping[str, Mapping[int, OffsetAndMetadata]]:
        """The durable offsets of a group by topic and partition; none for a group that does not exist."""
        entry = self._entries.get(group_id)
        return entry.offsets.by_topic if entry is not None and entry.group.state is not GroupState.DEAD else {}

    def committed_offsets(self) -> Iterator[CommittedOffset]:
        """Every group's durable offsets, for metrics: lag is a partition's end offset less this."""
        for group_id, entry in self._entries.items():
            for at, offset in entry.offsets:
                yield CommittedOffset(group_id, at.topic, at.partition, offset.offset)

    def new_offset(
        self,
        offset: int,
        *,
        leader_epoch: int,
        metadata: str | None,
        retention_ms: int | None,
        topic_id: bytes = NO_TOPIC_ID,
    ) -> OffsetAndMetadata:
        """An offset that is committed now, to be kept for the broker's retention or for this one."""
        now_ms = self._wall_clock_ms()
        return OffsetAndMetadata(
            offset=offset,
            leader_epoch=leader_epoch,
            metadata=metadata or "",
            commit_timestamp_ms=now_ms,
            expire_timestamp_ms=None if retention_ms is None else now_ms + retention_ms,
            topic_id=topic_id,
        )

    def is_metadata_too_large(self, metadata: str | None) -> bool:
        return metadata is not None and len(metadata) > self._settings.offset_metadata_max_count

    # -- Administration ----------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> Group | None:
        """Return a group to look at; a caller must not change it."""
        entry = self._entries.get(group_id)
        return entry.group if entry is not None else None

    def groups(self) -> Iterator[Group]:
        """All of them, to look at."""
        return (entry.group for entry in self._entries.values() if entry.group.state is not GroupState.DEAD)

    def delete_group(self, group_id: str) -> OneShot[int]:
        """Delete an empty group with its offsets; the error code, once that is durable."""
        entry = self._entries.get(group_id)
        if entry is None or entry.group.state is GroupState.DEAD:
            return OneShot(error_codes.GROUP_ID_NOT_FOUND)
        if entry.group.state is not GroupState.EMPTY:
            return OneShot(error_codes.NON_EMPTY_GROUP)
        reply: OneShot[int] = OneShot()
        self._bury(group_id, entry, reply)
        return reply

    def _bury(self, group_id: str, entry: _Entry, reply: OneShot[int]) -> None:
        entry.group.die()
        now_ms = self._wall_clock_ms()
        records = [offset_record(group_id, at, None, timestamp_ms=now_ms) for at in entry.offsets.known()]
        records.append(group_record(group_id, None, timestamp_ms=now_ms))
        then = partial(self._buried, group_id, entry, reply=reply)
        self._log.submit(self.led.partition_of(group_id), records, then, essential=True)

    def _buried(self, group_id: str, entry: _Entry, durable: bool, *, reply: OneShot[int]) -> None:
        if self._entries.get(group_id) is not entry:
            pass  # it is coordinated elsewhere
        elif durable:
            del self._entries[group_id]
            entry.offsets.disown()
            self.state_bytes.change(-GROUP_BYTES - len(group_id))
            logger.info("group %r is deleted", group_id)
        else:
            entry.group.revive()
        reply.set(error_codes.NONE if durable else error_codes.COORDINATOR_NOT_AVAILABLE)

    def check_offset_deletion(self, group_id: str) -> int:
        """The error code of an OffsetDelete for the group as a whole."""
        group = self.group(group_id)
        if group is None or group.state is GroupState.DEAD:
            return error_codes.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return error_codes.NON_EMPTY_GROUP  # nothing is known of what its members read
        return error_codes.NONE

    def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> OneShot[int]:
        """Forget these offsets of a group; the error code, once that is durable."""
        entry = self._entries.get(group_id)
        if entry is None:
            return OneShot(error_codes.GROUP_ID_NOT_FOUND)
        return self._forget(group_id, entry, set(partitions))

    def forget_topic(self, topic: str) -> None:
        """The topic is deleted: a topic of the same name will have offsets of its own."""
        for group_id, entry in self._entries.items():
            if partitions := entry.offsets.of_topic(topic):
                self._forget(group_id, entry, partitions)

    def _forget(self, group_id: str, entry: _Entry, partitions: set[TopicPartition]) -> OneShot[int]:
        reply: OneShot[int] = OneShot()
        doomed = PendingChange(entry.offsets.known_of(partitions))
        if not doomed.partitions:
            reply.set(error_codes.NONE)
            return reply
        now_ms = self._wall_clock_ms()
        records = [offset_record(group_id, at, None, timestamp_ms=now_ms) for at in doomed.partitions]
        then = partial(self._forgotten, entry, doomed, reply=reply)
        self._log.submit(self.led.partition_of(group_id), records, then, placed=doomed.placed, essential=True)
        return reply

    def _forgotten(self, entry: _Entry, doomed: PendingChange, durable: bool, *, reply: OneShot[int]) -> None:
        if durable:
            entry.offsets.forget(doomed)
        reply.set(error_codes.NONE if durable else error_codes.COORDINATOR_NOT_AVAILABLE)

    # -- Retention ---------------------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(self._settings.offsets_retention_check_interval_ms / 1000)
            for number, (group_id, entry) in enumerate(list(self._entries.items())):
                if number % SWEEP_BATCH_COUNT == 0:
                    await trio.lowlevel.checkpoint()
                self._expire(group_id, entry, self._wall_clock_ms())

    def _expire(self, group_id: str, entry: _Entry, now_ms: int) -> None:
        """Forget offsets that nobody has needed for the retention time, and an empty group that has none left."""
        group = entry.group
        if group.state is GroupState.DEAD:
            return  # deleted since the sweep began
        expired = self._expired(entry, now_ms)
        may_go = group.state is GroupState.EMPTY and not group.members.pending_join
        if may_go and len(expired) == len(entry.offsets.known()):
            self._bury(group_id, entry, OneShot())
        elif expired:
            logger.info("%d offsets of group %r have expired", len(expired), group_id)
            self._forget(group_id, entry, expired)

    def _expired(self, entry: _Entry, now_ms: int) -> set[TopicPartition]:
        """Return the partitions whose committed offsets are past retention.

        It is counted from when the group lost its last member; from the commit where the group never had any, and for
        topics that none of its members reads.
        """
        group = entry.group
        simple = group.protocol_type is None
        live = not simple and group.state is not GroupState.EMPTY
        if live and (group.state is not GroupState.STABLE or group.subscribed_topics is None):
            return set()
        pending = entry.offsets.pending()
        expired = set()
        for at, offset in entry.offsets:
            since_ms = offset.commit_timestamp_ms if simple or live else group.state_timestamp_ms
            expires_ms = offset.expire_timestamp_ms
            if expires_ms is None:
                expires_ms = since_ms + self._settings.offsets_retention_ms
            if now_ms >= expires_ms and at not in pending and not group.is_subscribed_to(at.topic):
                expired.add(at)
        return expired

    @property
    def _is_full(self) -> bool:
        return len(self._entries) >= self._settings.max_group_count

    def _entry(self, group_id: str) -> _Entry:
        entry = self._entries.get(group_id)
        if entry is None:
            group = Group(group_id=group_id, context=self._context)
            entry = self._entries[group_id] = _Entry(group=group, offsets=GroupOffsets(self.state_bytes))
            self.state_bytes.change(GROUP_BYTES + len(group_id))
        return entry


def _answer_late(reply: OneShot[int]) -> None:
    """It may take long until a commit is durable; Kafka's client tries again after this error."""
    if not reply.is_set:
        reply.set(error_codes.COORDINATOR_NOT_AVAILABLE)


def _assigned_bytes(group: Group) -> int:
    return sum(len(member.assignment) for member in group.members)
