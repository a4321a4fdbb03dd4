"""One consumer group of Kafka 4 (KIP-848): every request of a member is a method.

    Empty ──join──► Assigning ──target assignment──► Reconciling ──all members have theirs──► Stable
      ▲                 ▲                                                                       │
      └───all left──────┴──────── a member joins, goes or changes its mind; topics change ──────┘

Where no comment says otherwise, this does what Kafka 4.1 does. An event changes the group in memory at once. Its
records go to the log as one submission, and the answer comes through a OneShot when they are durable. An event that
writes nothing is answered when earlier records of the group are durable: a crash must not take back what a client was
told. Records are lost only with the leadership of the partition or the log, and the group in memory with them; so
nothing is ever undone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar, TypeVar

import attrs

from kafscale.cluster.groups.classic.group import ClassicGroup
from kafscale.cluster.groups.common.assignors import Partitions
from kafscale.cluster.groups.common.context import (
    CONSUMER_PROTOCOL_TYPE,
    MEMBER_EPOCH_SINCE,
    EventRefused,
    GroupContext,
    GroupMemberIdentity,
    Heartbeat,
    HeartbeatReply,
    Join,
    Sync,
    Then,
    TimerKey,
    TimerKind,
    ignore_outcome,
    refused_join,
)
from kafscale.cluster.groups.common.log_records import CoordinatorRecord, group_tombstone
from kafscale.cluster.groups.common.topics import KnownTopics
from kafscale.cluster.groups.consumer import classic_members as classic
from kafscale.cluster.groups.consumer import heartbeats, migration, regexes
from kafscale.cluster.groups.consumer.deciding import Deciding, SoftState
from kafscale.cluster.groups.consumer.members import Member
from kafscale.cluster.groups.consumer.migration import fence
from kafscale.cluster.groups.consumer.state import GroupState
from kafscale.cluster.groups.consumer.target import preferred_assignor
from kafscale.concurrency.signals import OneShot
from kafscale.wire import error_codes
from kafscale.wire.internal_topics.consumer_offsets import GroupMetadataKey
from kafscale.wire.messages.consumer_groups import (
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedTopicPartitions,
)
from kafscale.wire.messages.groups import JoinGroupResponse, MemberIdentity, SyncGroupResponse

logger = logging.getLogger(__name__)

R = TypeVar("R")

LATE = HeartbeatReply(error_code=error_codes.COORDINATOR_NOT_AVAILABLE, error_message="The coordinator is not ready.")


@attrs.define(eq=False, repr=False)
class ConsumerGroup:
    """One group, until it is deleted, becomes a classic one, or is coordinated by another broker."""

    group_type: ClassVar = "consumer"
    protocol_type: ClassVar = CONSUMER_PROTOCOL_TYPE

    group_id: str
    context: GroupContext
    state: GroupState = attrs.field(init=False)
    is_retired: bool = attrs.field(default=False, init=False)
    _soft: SoftState = attrs.field(init=False)
    _writing_count: int = attrs.field(default=0, init=False)  # submissions that are not durable yet

    def __attrs_post_init__(self) -> None:
        self.state = GroupState(self.group_id, self.context.state_bytes)
        self._soft = SoftState(self._expire)

    @classmethod
    def restored(cls, group_id: str, records: Iterable[CoordinatorRecord], context: GroupContext) -> ConsumerGroup:
        """Return a group as its records have it; each member has a full session from now on.

        Records come in the order of the log. Its end may be missing at any record, and of each key all but the last.
        """
        group = cls(group_id, context)
        for record in records:
            group.state.apply(record)
        group.state.rebuild_owners()
        group.restart_sessions()
        return group

    @classmethod
    def begin(
        cls, group_id: str, former: ClassicGroup | None, request: Heartbeat, context: GroupContext
    ) -> tuple[ConsumerGroup | None, OneShot[HeartbeatReply]]:
        """Handle a heartbeat with epoch 0 for which there is no consumer group; the group is None if that is refused.

        A classic group of the id becomes this one: with its members by migration, without members at once. All records
        of the change are one submission, so a crash leaves either group. The caller retires the classic group.
        """
        group = cls(group_id, context)
        deciding = group._deciding()
        try:
            heartbeats.check_request(request, context.settings.coordinator.group_consumer_assignors)
            if former is not None and len(former.members):
                migration.upgrade(deciding, former)
            reply = heartbeats.heartbeat(deciding, request)
        except EventRefused as refused:
            group.retire()
            return None, OneShot(_refused_heartbeat(refused))
        if former is not None:
            deciding.records.insert(0, group_tombstone(group_id))
        return group, group._reply(deciding, reply, LATE)

    @property
    def state_name(self) -> str:
        return self.state.state.value

    @property
    def is_empty(self) -> bool:
        """Tell whether the group exists and has no members."""
        return not self.state.is_deleted and not self.state.members

    @property
    def is_dead(self) -> bool:
        """Tell whether the group is being deleted, or is coordinated by another broker."""
        return self.is_retired or self.state.is_deleted

    # -- Members -----------------------------------------------------------------------------------------------------

    def consumer_heartbeat(self, request: Heartbeat) -> OneShot[HeartbeatReply]:
        """Handle a ConsumerGroupHeartbeat: join (epoch 0), stay, or leave (-1, and -2 in order to come back)."""

        def decide(deciding: Deciding) -> HeartbeatReply:
            heartbeats.check_request(request, self.context.settings.coordinator.group_consumer_assignors)
            return heartbeats.heartbeat(deciding, request)

        return self._answer(decide, _refused_heartbeat, LATE)

    def join(self, request: Join) -> OneShot[JoinGroupResponse]:
        """Handle a JoinGroup of a group that has members; without members it becomes a classic one instead."""

        def refuse(refused: EventRefused) -> JoinGroupResponse:
            full = refused.error_code == error_codes.GROUP_MAX_SIZE_REACHED
            return refused_join(refused.error_code, "" if full else request.member_id)

        late = refused_join(error_codes.COORDINATOR_NOT_AVAILABLE, request.member_id)
        return self._answer(lambda deciding: classic.join(deciding, request), refuse, late)

    def sync(self, request: Sync) -> OneShot[SyncGroupResponse]:
        late = SyncGroupResponse(error_code=error_codes.COORDINATOR_NOT_AVAILABLE)
        return self._answer(
            lambda deciding: classic.sync(deciding, request),
            lambda refused: SyncGroupResponse(error_code=refused.error_code),
            late,
        )

    def heartbeat(self, identity: GroupMemberIdentity) -> int:
        """Handle a Heartbeat, which writes nothing: the error code."""
        try:
            return classic.heartbeat(self._deciding(), identity)
        except EventRefused as refused:
            return refused.error_code

    def leave(self, leavers: Sequence[MemberIdentity]) -> Sequence[int]:
        """Handle a LeaveGroup; the error codes are good when all that was submitted is durable."""
        deciding = self._deciding()
        codes = classic.leave(deciding, leavers)
        self._settle(deciding)
        return codes

    def more_bytes(self, join: Join) -> int:
        return 0  # a consumer group itself refuses a join that takes too much memory

    # -- Time, and what searches find --------------------------------------------------------------------------------

    def regexes_found(self, found: Mapping[str, frozenset[str]], version: int) -> None:
        """Apply the result of a search, at this version of the topics."""
        if not self.is_dead:
            deciding = self._deciding()
            regexes.end_refresh(deciding, found, version)
            self._settle(deciding)

    def restart_sessions(self) -> None:
        """Give every member its full session timeout from now on."""
        deciding = self._deciding()
        for member in self.state.members.values():
            deciding.set_timer(TimerKind.SESSION, member, deciding.times.session_timeout_ms)
            if member.pending_revocation:
                deciding.set_timer(TimerKind.REBALANCE, member, member.rebalance_timeout_ms)

    def _expire(self, key: TimerKey) -> None:
        # A member need not revoke partitions of an epoch that it has left.
        deadline, member = self._soft.deadlines.pop(key), self.state.members[key.member_id]
        if key.kind is not TimerKind.REBALANCE or deadline.member_epoch == member.member_epoch:
            logger.info("member %r of group %r is removed: %s timeout", key.member_id, self.group_id, key.kind.value)
            deciding = self._deciding()
            fence(deciding, [member])
            self._settle(deciding)

    # -- Offsets -----------------------------------------------------------------------------------------------------

    def check_commit(self, identity: GroupMemberIdentity, version: int, *, is_transactional: bool = False) -> int:
        """Return the error code of a commit by this version of OffsetCommit, or in a transaction."""
        if self.is_dead:
            return error_codes.COORDINATOR_NOT_AVAILABLE
        epoch = identity.generation_id
        if epoch < 0 and not self.state.members:
            return error_codes.NONE
        names_no_member = not identity.member_id and identity.group_instance_id is None and epoch == -1
        if is_transactional and names_no_member:
            return error_codes.NONE
        member = self.state.members.get(identity.member_id)
        if member is None:
            return error_codes.UNKNOWN_MEMBER_ID
        is_classic = member.uses_classic_protocol
        if not is_transactional and not is_classic and version < MEMBER_EPOCH_SINCE:
            return error_codes.UNSUPPORTED_VERSION
        if member.member_epoch == epoch:
            return error_codes.NONE
        # A transactional producer knows of generations only.
        return error_codes.ILLEGAL_GENERATION if is_classic or is_transactional else error_codes.STALE_MEMBER_EPOCH

    def check_fetch(self, member_id: str | None, member_epoch: int) -> int:
        """Return the error code of a fetch of committed offsets; None and -1: by a client outside of the group."""
        if self.is_dead or (member_id is None and member_epoch < 0):
            return error_codes.NONE
        member = self.state.members.get(member_id or "")
        if member is None:
            return error_codes.UNKNOWN_MEMBER_ID
        if member.member_epoch == member_epoch:
            return error_codes.NONE
        return error_codes.ILLEGAL_GENERATION if member.uses_classic_protocol else error_codes.STALE_MEMBER_EPOCH

    def is_subscribed_to(self, topic: str) -> bool:
        """Tell whether any member reads this topic, so that its offsets stay."""
        return self.state.is_subscribed_to(topic)

    # -- Administration, and the end ---------------------------------------------------------------------------------

    def describe(self) -> DescribedConsumerGroup:
        """Return the answer to ConsumerGroupDescribe, without authorized operations."""
        state, context = self.state, self.context
        return DescribedConsumerGroup(
            group_id=state.group_id,
            group_state=state.state.value,
            group_epoch=state.epoch,
            assignment_epoch=state.assignment_epoch,
            assignor_name=preferred_assignor(state, context.settings.coordinator.group_consumer_assignors),
            members=[_member(state, member, context.topics) for member in state.members.values()],
        )

    def die(self) -> Sequence[CoordinatorRecord]:
        """Delete a group without members; return the records that delete it in the log, for the caller to write."""
        assert self.is_empty
        deciding = self._deciding()
        migration.delete(deciding)
        return deciding.records

    def retire(self) -> None:
        """Stop: another group has its place, or another broker coordinates it."""
        self.is_retired = True
        for deadline in self._soft.deadlines.values():
            self.context.timers.cancel(deadline.timer)
        self._soft.deadlines.clear()
        self.state.forget_bytes()

    # -- One event ---------------------------------------------------------------------------------------------------

    def _deciding(self) -> Deciding:
        return Deciding(context=self.context, state=self.state, soft=self._soft, now_ms=self.context.wall_clock_ms())

    def _answer(self, decide: Callable[[Deciding], R], refuse: Callable[[EventRefused], R], late: R) -> OneShot[R]:
        deciding = self._deciding()
        try:
            reply = decide(deciding)
        except EventRefused as refused:
            reply = refuse(refused)
        return self._reply(deciding, reply, late)

    def _reply(self, deciding: Deciding, value: R, late: R) -> OneShot[R]:
        """Write an event's records; the answer is `late` if that takes long, or fails."""
        reply: OneShot[R] = OneShot()

        def settled(durable: bool) -> None:
            _set_once(reply, value if durable else late)

        self._settle(deciding, settled, partial(_set_once, reply, late))
        return reply

    def _settle(self, deciding: Deciding, then: Then = ignore_outcome, late: Callable[[], None] = lambda: None) -> None:
        """Write an event's records, and call `then` when these and all earlier ones are durable, or lost."""
        if deciding.refresh is not None:
            self.context.search(self, deciding.refresh)
        downgrade = deciding.downgrade
        if downgrade is not None:
            deciding.records.append(CoordinatorRecord(GroupMetadataKey(self.group_id), downgrade.group))
        if deciding.records or self._writing_count:
            self._writing_count += 1
            self.context.submit(self.group_id, deciding.records, partial(self._written, then), late=late)
        else:
            then(True)
        if downgrade is not None:
            self.context.downgrade(self.group_id, downgrade)

    def _written(self, then: Then, durable: bool) -> None:
        self._writing_count -= 1
        then(durable)


def _set_once(reply: OneShot[R], value: R) -> None:
    if not reply.is_set:
        reply.set(value)


def _refused_heartbeat(refused: EventRefused) -> HeartbeatReply:
    return HeartbeatReply(error_code=refused.error_code, error_message=refused.message)


CLASSIC_MEMBER_TYPE = 0
CONSUMER_MEMBER_TYPE = 1


def _member(state: GroupState, member: Member, topics: KnownTopics) -> DescribedConsumer:
    return DescribedConsumer(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscription.topic_names),
        subscribed_topic_regex=member.subscription.topic_regex,
        assignment=_assignment(member.assigned, topics),
        target_assignment=_assignment(state.target(member.member_id), topics),
        member_type=CLASSIC_MEMBER_TYPE if member.uses_classic_protocol else CONSUMER_MEMBER_TYPE,
    )


def _assignment(partitions: Partitions, topics: KnownTopics) -> DescribedAssignment:
    known = [topics.by_id[topic_id] for topic_id in partitions if topic_id in topics.by_id]
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopicPartitions(
                topic_id=topic.topic_id, topic_name=topic.name, partitions=sorted(partitions[topic.topic_id])
            )
            for topic in sorted(known, key=lambda topic: topic.name)
        ]
    )
