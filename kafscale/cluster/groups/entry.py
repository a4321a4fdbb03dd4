"""The group of either protocol under one group id, with its committed offsets; and its change to the other protocol.

A group without members changes at once, one with members by migration. All records of a change are one submission, so a
crash leaves either the one group or the other. Requests that wait in a classic group get an error after which the
client joins again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeAlias

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups.classic.group import ClassicGroup, ClassicGroupContext, ClassicGroupState
from kafscale.cluster.groups.common.events import GroupMemberIdentity, Join, OffsetAndMetadata
from kafscale.cluster.groups.common.settings import join_bytes
from kafscale.cluster.groups.consumer.events import Downgrade, Heartbeat, HeartbeatReply
from kafscale.cluster.groups.consumer.group import OffsetAccess
from kafscale.cluster.groups.hosted import HostContext, HostedGroup
from kafscale.cluster.groups.log_records import group_record
from kafscale.cluster.groups.offsets import GroupOffsets
from kafscale.concurrency.signals import OneShot
from kafscale.wire import error_codes
from kafscale.wire.records import Record

logger = logging.getLogger(__name__)


def first_heartbeat(
    group_id: str, former: ClassicGroup | None, request: Heartbeat, context: HostContext
) -> tuple[HostedGroup | None, OneShot[HeartbeatReply]]:
    """Make a consumer group, of a classic one if there is such; None if the heartbeat is refused, and the answer."""
    if former is not None and len(former.members):
        begun, reply = HostedGroup.upgraded(former.record(), group_id, request, context)
    else:
        tombstone = group_record(group_id, None, timestamp_ms=context.wall_clock_ms())
        before = [] if former is None else [tombstone]
        begun, reply = HostedGroup.begun(group_id, request, context, before=before)
    if former is not None and begun is not None:
        logger.info("group %r is a consumer group now", group_id)
        former.resign(error_codes.REBALANCE_IN_PROGRESS)
    return begun, reply


def begin_classic(entry: GroupEntry, context: ClassicGroupContext) -> ClassicGroup:
    """Put a new classic group into the place of a consumer group without members."""
    former = entry.hosted
    assert former is not None
    former.delete()
    entry.group = group = ClassicGroup(group_id=former.group_id, context=context)
    return group


def end_downgrade(entry: GroupEntry, downgrade: Downgrade, context: ClassicGroupContext) -> None:
    """A consumer group is a classic one from now on, as the log has been told."""
    former = entry.hosted
    assert former is not None
    logger.info("group %r is a classic group now: %s", former.group_id, downgrade.reason)
    former.retire()
    entry.group = group = ClassicGroup(group_id=former.group_id, context=context)
    group.restore(downgrade.group)
    if downgrade.rebalances:
        group.rebalance(downgrade.reason)


AnyGroup: TypeAlias = ClassicGroup | HostedGroup


@attrs.define(eq=False, kw_only=True, repr=False)
class GroupEntry:
    """The group may become one of the other protocol; the offsets stay."""

    group: AnyGroup
    offsets: GroupOffsets

    @property
    def classic(self) -> ClassicGroup | None:
        """The group if it is a classic one, or only ever committed offsets."""
        return self.group if isinstance(self.group, ClassicGroup) else None

    @property
    def hosted(self) -> HostedGroup | None:
        """The group if it is one of Kafka 4's protocol."""
        return self.group if isinstance(self.group, HostedGroup) else None

    @property
    def is_dead(self) -> bool:
        """Tell whether the group is being deleted, or is coordinated elsewhere."""
        return self.group.is_dead if isinstance(self.group, HostedGroup) else self.group.state is ClassicGroupState.DEAD

    @property
    def is_empty(self) -> bool:
        """Tell whether the group exists and has no members."""
        return (
            self.group.is_empty if isinstance(self.group, HostedGroup) else self.group.state is ClassicGroupState.EMPTY
        )

    def more_bytes(self, join: Join) -> int:
        """Return by how many bytes a join would make the state grow; a consumer group finds that out itself."""
        if isinstance(self.group, HostedGroup):
            return 0
        member = self.group.members.get(join.member_id)
        return join_bytes(join) - (0 if member is None else member.counted_bytes - len(member.assignment))

    def retire(self) -> None:
        """Forget the members, and send waiting requests to another coordinator."""
        if isinstance(self.group, HostedGroup):
            self.group.retire()
        else:
            self.group.resign(error_codes.NOT_COORDINATOR)

    def die(self, now_ms: int) -> Sequence[Record]:
        """Delete an empty group in memory; return the records that delete it in the log, but for its offsets."""
        if isinstance(self.group, HostedGroup):
            return self.group.tombstones()
        self.group.die()
        return [group_record(self.group.group_id, None, timestamp_ms=now_ms)]

    # -- Offsets -----------------------------------------------------------------------------------------------------

    def check_commit(self, identity: GroupMemberIdentity, version: int, *, is_transactional: bool = False) -> int:
        """Return the error code of a commit by this version of OffsetCommit, or in a transaction."""
        if not isinstance(self.group, HostedGroup):
            check = self.group.check_transactional_commit if is_transactional else self.group.check_commit
            return check(identity.member_id, identity.group_instance_id, identity.generation_id)
        if self.group.is_dead:
            return error_codes.COORDINATOR_NOT_AVAILABLE
        access = OffsetAccess(
            member_id=identity.member_id,
            member_epoch=identity.generation_id,
            instance_id=identity.group_instance_id,
            version=version,
            is_transactional=is_transactional,
        )
        return self.group.machine.check_commit(access)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> int:
        """Return the error code of a fetch of committed offsets; any client may fetch those of a classic group."""
        if not isinstance(self.group, HostedGroup) or self.group.is_dead:
            return error_codes.NONE
        return self.group.machine.check_fetch(OffsetAccess(member_id=member_id, member_epoch=member_epoch))

    def is_subscribed_to(self, topic: str) -> bool:
        """Tell whether a member reads this topic; True also where that is not known of a consumer."""
        if isinstance(self.group, HostedGroup):
            return self.group.machine.is_subscribed_to(topic)
        return self.group.is_subscribed_to(topic)

    @property
    def may_be_deleted_when_unused(self) -> bool:
        """Tell whether the group goes with the last of its offsets."""
        return self.is_empty and not (isinstance(self.group, ClassicGroup) and self.group.members.pending_join)

    def expired(self, now_ms: int, retention_ms: int) -> set[TopicPartition]:
        """Return the partitions whose committed offsets are past retention.

        It is counted from when a classic group lost its last member; from the commit where the group never had any, for
        topics that none of its members reads, and in a group of Kafka 4's protocol, as there.
        """
        group = self.group
        since_ms: int | None = None
        if isinstance(group, ClassicGroup) and group.protocol_type is not None:
            if group.state is ClassicGroupState.EMPTY:
                since_ms = group.state_timestamp_ms
            elif group.state is not ClassicGroupState.STABLE or group.subscribed_topics is None:
                return set()
        pending = self.offsets.pending()
        return {
            at
            for at, offset in self.offsets
            if now_ms >= _expires_ms(offset, since_ms, retention_ms)
            and at not in pending
            and not self.is_subscribed_to(at.topic)
        }


def _expires_ms(offset: OffsetAndMetadata, since_ms: int | None, retention_ms: int) -> int:
    if offset.expire_timestamp_ms is not None:
        return offset.expire_timestamp_ms
    return (offset.commit_timestamp_ms if since_ms is None else since_ms) + retention_ms
