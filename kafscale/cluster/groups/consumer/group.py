"""One consumer group of Kafka 4 (KIP-848): every event is a method, and each returns an `GroupOutcome`.

    Empty ──join──► Assigning ──target assignment──► Reconciling ──all members have theirs──► Stable
      ▲                 ▲                                                                       │
      └───all left──────┴──────── a member joins, goes or changes its mind; topics change ──────┘

The group epoch rises with each change that calls for another assignment. The next heartbeat of any member computes the
target assignment of that epoch, and each member gets there at its own pace, in one heartbeat or several. A member waits
only for partitions that other members have yet to give up.

What goes in is the request and the time; no method waits, and none reads a clock. The group changes at once, the reply
is good when the records are durable (`GroupOutcome`). A deadline comes back by `expire`. What this does is what Kafka
4.1 does, but where a comment says otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import attrs

from kafscale.cluster.groups.common.events import (
    GroupMemberIdentity,
    GroupRecord,
    Join,
    JoinResult,
    Leaving,
    Sync,
    SyncResult,
)
from kafscale.cluster.groups.consumer import classic_members as classic
from kafscale.cluster.groups.consumer import heartbeats, migration, regexes
from kafscale.cluster.groups.consumer.deciding import ConsumerGroupContext, Deciding, SoftState
from kafscale.cluster.groups.consumer.describing import describe
from kafscale.cluster.groups.consumer.events import (
    CoordinatorRecord,
    EventRefused,
    GroupOutcome,
    Heartbeat,
    HeartbeatReply,
    TimerKey,
    TimerKind,
)
from kafscale.cluster.groups.consumer.migration import fence
from kafscale.cluster.groups.consumer.state import ConsumerGroupState, GroupState
from kafscale.wire import error_codes
from kafscale.wire.messages.consumer_groups import DescribedConsumerGroup

# The first version of OffsetCommit and OffsetFetch whose generation may be a member epoch.
MEMBER_EPOCH_SINCE = 9


@attrs.frozen(kw_only=True)
class OffsetAccess:
    """The identity that a client claims. None or epoch -1: not given, by an administrator or an old client."""

    member_id: str | None
    member_epoch: int
    instance_id: str | None = None
    version: int = MEMBER_EPOCH_SINCE
    is_transactional: bool = False


def check_commit(state: GroupState, access: OffsetAccess) -> int:
    """Return the error code of a commit of offsets."""
    if access.member_epoch < 0 and not state.members:
        return error_codes.NONE
    says_nothing = not access.member_id and access.instance_id is None and access.member_epoch == -1
    if access.is_transactional and says_nothing:
        return error_codes.NONE
    member = state.members.get(access.member_id or "")
    if member is None:
        return error_codes.UNKNOWN_MEMBER_ID
    is_classic = member.uses_classic_protocol
    if not access.is_transactional and not is_classic and access.version < MEMBER_EPOCH_SINCE:
        return error_codes.UNSUPPORTED_VERSION
    if member.member_epoch == access.member_epoch:
        return error_codes.NONE
    # A transactional producer knows of generations only.
    return error_codes.ILLEGAL_GENERATION if is_classic or access.is_transactional else error_codes.STALE_MEMBER_EPOCH


def check_fetch(state: GroupState, access: OffsetAccess) -> int:
    """Return the error code of a fetch of committed offsets."""
    if access.member_id is None and access.member_epoch < 0:
        return error_codes.NONE
    member = state.members.get(access.member_id or "")
    if member is None:
        return error_codes.UNKNOWN_MEMBER_ID
    if member.member_epoch == access.member_epoch:
        return error_codes.NONE
    return error_codes.ILLEGAL_GENERATION if member.uses_classic_protocol else error_codes.STALE_MEMBER_EPOCH


logger = logging.getLogger(__name__)

R = TypeVar("R")


@attrs.define(eq=False, repr=False)
class ConsumerGroup:
    """One group, from its first heartbeat or from its records, until it is deleted or becomes a classic one.

    A group whose first heartbeat was refused has no records (`exists` is False), and is to be forgotten.
    """

    context: ConsumerGroupContext
    state: GroupState
    _soft: SoftState = attrs.field(factory=SoftState, init=False)

    @classmethod
    def new(cls, group_id: str, context: ConsumerGroupContext) -> ConsumerGroup:
        """Return a group without members, of which nothing is written yet."""
        return cls(context, GroupState(group_id, context.state_bytes))

    @classmethod
    def restore(
        cls, group_id: str, records: Iterable[CoordinatorRecord], context: ConsumerGroupContext, *, now_ms: int
    ) -> Restored:
        """Return a group as its records have it; each member has a full session from now on.

        Records come in the order of the log. Its end may be missing at any record, and of each key all but the last.
        """
        group = cls.new(group_id, context)
        for record in records:
            group.state.apply(record)
        group.state.rebuild_owners()
        return Restored(group=group, outcome=group.restart_sessions(now_ms=now_ms))

    @classmethod
    def join_classic(
        cls, group_id: str, group: GroupRecord, request: Heartbeat, context: ConsumerGroupContext, *, now_ms: int
    ) -> Joined:
        """Handle a heartbeat with epoch 0 that reaches a classic group with members: make it a consumer group.

        The caller answers the joins and syncs that wait in the classic group with REBALANCE_IN_PROGRESS, deletes its
        record and writes these, all at once, and forgets it.
        """
        upgraded = cls.new(group_id, context)

        def decide(deciding: Deciding) -> GroupOutcome[HeartbeatReply]:
            heartbeats.check_request(request, context.settings)
            migration.check_upgrade(group_id, group, context.settings)
            migration.upgrade(deciding, group)
            return heartbeats.heartbeat(deciding, request)

        outcome = upgraded._answer(decide, _refuse_heartbeat, now_ms)
        if outcome.reply.error_code == error_codes.NONE:
            return Joined(group=upgraded, outcome=outcome)
        upgraded.forget()
        return Joined(group=None, outcome=outcome)

    @property
    def group_id(self) -> str:
        return self.state.group_id

    @property
    def exists(self) -> bool:
        """The group has records."""
        return self.state.exists

    def forget(self) -> None:
        """Give back what the group takes of the bound on all groups; nothing else may be done with it."""
        self.state.forget_bytes()

    # -- Members of the consumer protocol ----------------------------------------------------------------------------

    def heartbeat(self, request: Heartbeat, *, now_ms: int) -> GroupOutcome[HeartbeatReply]:
        """Handle a ConsumerGroupHeartbeat: join (epoch 0), stay, or leave (-1, and -2 in order to come back).

        A group is made (`new`) only for epoch 0; without a group, the caller answers other epochs GROUP_ID_NOT_FOUND.
        """

        def decide(deciding: Deciding) -> GroupOutcome[HeartbeatReply]:
            heartbeats.check_request(request, self.context.settings)
            return heartbeats.heartbeat(deciding, request)

        return self._answer(decide, _refuse_heartbeat, now_ms)

    def regexes_found(self, found: Mapping[str, frozenset[str]], *, version: int, now_ms: int) -> GroupOutcome[None]:
        """Take over what was found for `Outcome.refresh`, at its version of the topics."""
        deciding = self._decide(now_ms)
        regexes.end_refresh(deciding, found, version)
        return deciding.outcome(None)

    # -- Members of the classic protocol -----------------------------------------------------------------------------

    def join(self, request: Join, *, now_ms: int) -> GroupOutcome[JoinResult]:
        """Handle a JoinGroup. One that reaches a group without members makes that a classic one instead: `delete`."""

        def refuse(refused: EventRefused) -> JoinResult:
            full = refused.error_code == error_codes.GROUP_MAX_SIZE_REACHED
            return JoinResult(error_code=refused.error_code, member_id="" if full else request.member_id)

        return self._answer(lambda deciding: classic.join(deciding, request), refuse, now_ms)

    def sync(self, request: Sync, *, now_ms: int) -> GroupOutcome[SyncResult]:
        """Handle a SyncGroup."""

        def refuse(refused: EventRefused) -> SyncResult:
            return SyncResult(error_code=refused.error_code)

        return self._answer(lambda deciding: classic.sync(deciding, request), refuse, now_ms)

    def classic_heartbeat(self, identity: GroupMemberIdentity, *, now_ms: int) -> GroupOutcome[int]:
        """Handle a Heartbeat: the error code."""

        def refuse(refused: EventRefused) -> int:
            return refused.error_code

        return self._answer(lambda deciding: classic.heartbeat(deciding, identity), refuse, now_ms)

    def leave(self, leavers: Sequence[Leaving], *, now_ms: int) -> GroupOutcome[tuple[int, ...]]:
        """Handle a LeaveGroup: an error code for each."""
        return classic.leave(self._decide(now_ms), leavers)

    # -- Time --------------------------------------------------------------------------------------------------------

    def restart_sessions(self, *, now_ms: int) -> GroupOutcome[None]:
        """Give each member all of its time from now on."""
        deciding = self._decide(now_ms)
        for member in self.state.members.values():
            deciding.set_timer(TimerKind.SESSION, member, deciding.times.session_timeout_ms)
            if member.pending_revocation:
                deciding.set_timer(TimerKind.REBALANCE, member, member.rebalance_timeout_ms)
        return deciding.outcome(None)

    def expire(self, key: TimerKey, *, now_ms: int) -> GroupOutcome[None]:
        """A deadline may have passed: the member goes, unless it was heard from, or has left that epoch."""
        deciding = self._decide(now_ms)
        deadline = self._soft.deadlines.get(key)
        if deadline is None or now_ms < deadline.at_ms:
            deciding.repeat_timer(key)
            return deciding.outcome(None)
        del self._soft.deadlines[key]
        member = self.state.members[key.member_id]
        if key.kind is not TimerKind.REBALANCE or deadline.member_epoch == member.member_epoch:
            logger.info("member %r of group %r is removed: %s timeout", key.member_id, self.group_id, key.kind.value)
            fence(deciding, [member])
        return deciding.outcome(None)

    # -- Offsets -----------------------------------------------------------------------------------------------------

    def check_commit(self, access: OffsetAccess) -> int:
        """Return the error code of a commit of offsets."""
        return check_commit(self.state, access)

    def check_fetch(self, access: OffsetAccess) -> int:
        """Return the error code of a fetch of committed offsets."""
        return check_fetch(self.state, access)

    def is_subscribed_to(self, topic_name: str) -> bool:
        """Tell whether any member reads this topic, so that its offsets stay."""
        return self.state.is_subscribed_to(topic_name)

    # -- Administration ----------------------------------------------------------------------------------------------

    def describe(self) -> DescribedConsumerGroup:
        """Return all that is to be known about the group."""
        return describe(self.state, self.context.topics, self.context.settings)

    def delete(self, *, now_ms: int) -> GroupOutcome[int]:
        """Delete a group without members; the error code. Its offsets are not known here."""
        deciding = self._decide(now_ms)
        if self.state.state is not ConsumerGroupState.EMPTY:
            return deciding.outcome(error_codes.NON_EMPTY_GROUP)
        migration.delete(deciding)
        return deciding.outcome(error_codes.NONE)

    # -- One event ---------------------------------------------------------------------------------------------------

    def _decide(self, now_ms: int) -> Deciding:
        return Deciding(context=self.context, state=self.state, soft=self._soft, now_ms=now_ms)

    def _answer(
        self, decide: Callable[[Deciding], GroupOutcome[R]], refuse: Callable[[EventRefused], R], now_ms: int
    ) -> GroupOutcome[R]:
        try:
            return decide(self._decide(now_ms))
        except EventRefused as refused:
            return GroupOutcome(reply=refuse(refused))


@attrs.frozen(kw_only=True)
class Restored:
    """A group that is back after a restart; the outcome has its timers."""

    group: ConsumerGroup
    outcome: GroupOutcome[None]


@attrs.frozen(kw_only=True)
class Joined:
    """A classic group that has become a consumer group, or None for the group and a reply that says why not."""

    group: ConsumerGroup | None
    outcome: GroupOutcome[HeartbeatReply]


def _refuse_heartbeat(refused: EventRefused) -> HeartbeatReply:
    return HeartbeatReply(error_code=refused.error_code, error_message=refused.message)
