"""One event while it is decided: the group as it is and becomes, and what is to be written and timed for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol
from uuid import uuid4

import attrs

from kafscale.cluster.groups.assignors.spec import Partitions
from kafscale.cluster.groups.common.settings import GroupStateBytes
from kafscale.cluster.groups.consumer.events import (
    CoordinatorRecord,
    Downgrade,
    GroupOutcome,
    RegexRefresh,
    Reply,
    TimerChange,
    TimerKey,
    TimerKind,
)
from kafscale.cluster.groups.consumer.members import Member
from kafscale.cluster.groups.consumer.settings import NO_OVERRIDES, ConsumerGroupSettings, GroupOverrides, GroupTimes
from kafscale.cluster.groups.consumer.state import GroupState, target_record
from kafscale.cluster.groups.consumer.target import compute_target, covers_subscriptions, next_step, preferred_assignor
from kafscale.cluster.groups.consumer.topics import KnownTopics
from kafscale.cluster.groups.consumer.viewers import Viewers
from kafscale.wire.internal_topics.consumer_offsets import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
)


class Rights(Protocol):
    """The authorizer, for topics that regular expressions find."""

    @property
    def version(self) -> int:
        """The number of changes of rights since the start."""

    def may_describe(self, viewer: Any, topic: str) -> bool:
        """Tell whether a client may know of a topic."""


@attrs.frozen(eq=False, kw_only=True, repr=False)
class ConsumerGroupContext:
    """Shared state of a coordinator's groups; `rights` is None without an authorizer."""

    settings: ConsumerGroupSettings = attrs.field(factory=ConsumerGroupSettings)
    topics: KnownTopics = attrs.field(factory=KnownTopics)
    state_bytes: GroupStateBytes = attrs.field(factory=GroupStateBytes)
    overrides: Mapping[str, GroupOverrides] = attrs.field(factory=dict)  # by group id
    new_member_id: Callable[[], str] = lambda: str(uuid4())
    rights: Rights | None = None


@attrs.frozen
class Deadline:
    """A deadline of a member, and its epoch when it got the deadline."""

    at_ms: int
    member_epoch: int


@attrs.define(eq=False, repr=False)
class SoftState:
    """State of a group that a restart may forget."""

    deadlines: dict[TimerKey, Deadline] = attrs.field(factory=dict)
    checked_version: int | None = (
        None  # of the topics, when the group last looked at its own; None: not since the start
    )
    refreshing: RegexRefresh | None = None  # what is being looked for
    viewers: Viewers = attrs.field(factory=Viewers)


@attrs.define(eq=False, kw_only=True, repr=False)
class Deciding:
    """Records that are written here change the group at once, so that what follows sees them.

    Whatever might be refused is looked at before the first of them.
    """

    context: ConsumerGroupContext
    state: GroupState
    soft: SoftState
    now_ms: int
    refresh: RegexRefresh | None = attrs.field(default=None, init=False)
    downgrade: Downgrade | None = attrs.field(default=None, init=False)
    _records: list[CoordinatorRecord] = attrs.field(factory=list, init=False)
    _timers: dict[TimerKey, int | None] = attrs.field(factory=dict, init=False)

    @property
    def topics(self) -> KnownTopics:
        return self.context.topics

    @property
    def settings(self) -> ConsumerGroupSettings:
        return self.context.settings

    @property
    def times(self) -> GroupTimes:
        """The times that are in force for this group."""
        return self.settings.times(self.context.overrides.get(self.state.group_id, NO_OVERRIDES))

    def outcome(self, reply: Reply) -> GroupOutcome[Reply]:
        """Return what the event has led to."""
        return GroupOutcome(
            reply=reply,
            records=tuple(self._records),
            timers=tuple(TimerChange(key, deadline_ms) for key, deadline_ms in self._timers.items()),
            refresh=self.refresh,
            downgrade=self.downgrade,
        )

    # -- Records -----------------------------------------------------------------------------------------------------

    def write(self, record: CoordinatorRecord) -> None:
        """Write a record after those before it."""
        self.state.apply(record)
        self._records.append(record)

    def raise_epoch(self) -> None:
        """Make the next heartbeat, or this one, compute another target assignment.

        The record goes in front of all others: if a crash lets only some of the records through, whatever they are, the
        group that comes back knows that its target assignment is out of date.
        """
        record = CoordinatorRecord(
            ConsumerGroupMetadataKey(self.state.group_id),
            ConsumerGroupMetadataValue(epoch=self.state.epoch + 1, metadata_hash=self._metadata_hash()),
        )
        self.state.apply(record)
        self._records = [record, *(written for written in self._records if written.key != record.key)]
        self.soft.checked_version = self.topics.version

    def remove(self, member: Member) -> None:
        """Write that a member and what it has are gone."""
        group_id = self.state.group_id
        for key in (
            ConsumerGroupCurrentMemberAssignmentKey(group_id, member.member_id),
            ConsumerGroupTargetAssignmentMemberKey(group_id, member.member_id),
            ConsumerGroupMemberMetadataKey(group_id, member.member_id),
        ):
            self.write(CoordinatorRecord(key, None))
        self.soft.viewers.remove(member.member_id)
        for kind in TimerKind:
            self.cancel_timer(kind, member.member_id)

    def replace(self, before: Member, member_id: str) -> Member:
        """Write that a static member has another id, and return it: it has what it had, and starts at epoch 0."""
        target = self.state.target(before.member_id)
        member = attrs.evolve(before, member_id=member_id, member_epoch=0, previous_member_epoch=0)
        self.remove(before)
        self.write(member.metadata_record(self.state.group_id))
        self.write(target_record(self.state.group_id, member_id, target))
        self.write(member.assignment_record(self.state.group_id))
        return member

    # -- What follows from a change ----------------------------------------------------------------------------------

    def check_topics(self) -> None:
        """Raise the epoch if the subscribed topics are others than at the last time, and clean up after Kafka 4.0.

        The first time after a restart it is also raised if the target assignment has a hole: the end of what the last
        process wrote may be missing.
        """
        if self.state.has_partition_metadata:
            self.write(CoordinatorRecord(ConsumerGroupPartitionMetadataKey(self.state.group_id), None))
        if self.soft.checked_version == self.topics.version:
            return
        first, settled = self.soft.checked_version is None, self.state.epoch == self.state.assignment_epoch
        self.soft.checked_version = self.topics.version
        changed = self._metadata_hash() != self.state.metadata_hash
        if changed or (first and settled and not covers_subscriptions(self.state, self.topics)):
            self.raise_epoch()

    def update_target(self) -> None:
        """Compute the target assignment if it is out of date, and write what has changed of it."""
        if self.state.epoch <= self.state.assignment_epoch:
            return
        assignor = preferred_assignor(self.state, self.settings.assignors)
        waiting = self.soft.viewers.waiting
        for member_id, partitions in compute_target(self.state, self.topics, assignor, waiting=waiting).items():
            if self.state.targets.get(member_id) != partitions:
                self.write(target_record(self.state.group_id, member_id, partitions))
        self.write(self.state.assignment_epoch_record(self.state.epoch))

    def reconcile(self, member: Member, owned: Partitions | None) -> Member:
        """Take a member one step towards its target assignment, and return it as it is then."""
        updated = next_step(self.state, member, self.state.assignment_epoch, owned)
        if updated is member or updated == member:
            return member
        self.write(updated.assignment_record(self.state.group_id))
        if updated.uses_classic_protocol:
            return updated  # it has a time to join and a time to sync
        if updated.pending_revocation:
            self.set_timer(TimerKind.REBALANCE, updated, updated.rebalance_timeout_ms)
        else:
            self.cancel_timer(TimerKind.REBALANCE, updated.member_id)
        return updated

    def _metadata_hash(self) -> int:
        return self.topics.hash_of(self.state.subscribed_topic_names())

    # -- Timers ------------------------------------------------------------------------------------------------------

    def set_timer(self, kind: TimerKind, member: Member, after_ms: int) -> None:
        """Give a member so much time from now on."""
        key = TimerKey(kind, member.member_id)
        self.soft.deadlines[key] = Deadline(self.now_ms + after_ms, member.member_epoch)
        self._timers[key] = self.now_ms + after_ms

    def set_timer_if_absent(self, kind: TimerKind, member: Member, after_ms: int) -> None:
        """Give a member so much time, unless it has been given some before."""
        if TimerKey(kind, member.member_id) not in self.soft.deadlines:
            self.set_timer(kind, member, after_ms)

    def cancel_timer(self, kind: TimerKind, member_id: str) -> None:
        """Let a member have all the time that it wants."""
        key = TimerKey(kind, member_id)
        if self.soft.deadlines.pop(key, None) is not None:
            self._timers[key] = None

    def repeat_timer(self, key: TimerKey) -> None:
        """Say again when a deadline is, to somebody who came before it."""
        deadline = self.soft.deadlines.get(key)
        self._timers[key] = None if deadline is None else deadline.at_ms
