"""One event while it is decided: the group, the event's records, and its timers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from functools import partial

import attrs

from kafscale.cluster.groups.common.assignors import Partitions
from kafscale.cluster.groups.common.context import (
    NO_OVERRIDES,
    Downgrade,
    GroupContext,
    GroupTimes,
    RegexRefresh,
    TimerKey,
    TimerKind,
    group_times,
)
from kafscale.cluster.groups.common.log_records import CoordinatorRecord
from kafscale.cluster.groups.common.topics import KnownTopics
from kafscale.cluster.groups.consumer.members import Member
from kafscale.cluster.groups.consumer.state import GroupState, target_record
from kafscale.cluster.groups.consumer.target import compute_target, covers_subscriptions, next_step, preferred_assignor
from kafscale.concurrency.timers import Timer
from kafscale.config import Settings
from kafscale.wire.internal_topics.consumer_offsets import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
)


@attrs.frozen
class _Searched:
    """The clients that an expression was last searched for, and the version of their rights."""

    viewers: frozenset[Hashable] = frozenset()
    rights_version: int | None = None


NOT_SEARCHED = _Searched()


@attrs.define(eq=False, repr=False)
class Viewers:
    """The clients of members that subscribe by regular expressions.

    `waiting` are members for whose rights their expression has not been searched yet. Records do not name a member's
    client: after a restart it is known from the member's next heartbeat on.
    """

    waiting: set[str] = attrs.field(factory=set, init=False)
    _of_member: dict[str, tuple[str, Hashable]] = attrs.field(factory=dict, init=False)
    _by_regex: dict[str, Counter[Hashable]] = attrs.field(factory=dict, init=False)
    _searched: dict[str, _Searched] = attrs.field(factory=dict, init=False)

    def put(self, member_id: str, regex: str, viewer: Hashable, *, is_known: bool) -> None:
        """Note a member's client. A member that had the expression before (`is_known`) keeps its topics."""
        before = self._of_member.get(member_id)
        if before == (regex, viewer):
            return
        self.remove(member_id)
        self._of_member[member_id] = (regex, viewer)
        self._by_regex.setdefault(regex, Counter())[viewer] += 1
        if viewer not in self._searched.get(regex, NOT_SEARCHED).viewers and (before is not None or not is_known):
            self.waiting.add(member_id)

    def remove(self, member_id: str) -> None:
        self.waiting.discard(member_id)
        before = self._of_member.pop(member_id, None)
        if before is None:
            return
        regex, viewer = before
        counts = self._by_regex[regex]
        counts[viewer] -= 1
        if not counts[viewer]:
            del counts[viewer]
        if not counts:
            del self._by_regex[regex]

    def of(self, regex: str, member_count: int) -> frozenset[Hashable] | None:
        """Return the clients that subscribe by an expression, or None if that of a member is not known yet."""
        counts = self._by_regex.get(regex)
        return None if counts is None or counts.total() != member_count else frozenset(counts)

    def is_searched(self, regex: str, viewers: frozenset[Hashable], rights_version: int) -> bool:
        """Tell whether an expression has been searched for these clients, with the rights that they have now."""
        searched = self._searched.get(regex, NOT_SEARCHED)
        return rights_version == searched.rights_version and viewers <= searched.viewers

    def note_searched(self, viewers: Mapping[str, frozenset[Hashable]], rights_version: int) -> bool:
        """Note that expressions were searched for these clients; tell whether members have waited for that."""
        self._searched = {regex: searched for regex, searched in self._searched.items() if regex in self._by_regex}
        self._searched |= {regex: _Searched(of_regex, rights_version) for regex, of_regex in viewers.items()}
        served = {
            member_id
            for member_id in self.waiting
            for regex, viewer in [self._of_member[member_id]]
            if viewer in viewers.get(regex, NOT_SEARCHED.viewers)
        }
        self.waiting -= served
        return bool(served)


@attrs.define(eq=False, repr=False)
class Deadline:
    """A deadline of a member, and the member's epoch when it got the deadline."""

    timer: Timer
    member_epoch: int


@attrs.define(eq=False, repr=False)
class SoftState:
    """State of a group that a restart may forget. `expire` is called with a deadline that has passed."""

    expire: Callable[[TimerKey], None]
    deadlines: dict[TimerKey, Deadline] = attrs.field(factory=dict, init=False)
    checked_version: int | None = None  # of the topics, when the group last looked at its own; None: not yet
    refreshing: RegexRefresh | None = None  # the search that is under way
    viewers: Viewers = attrs.field(factory=Viewers)


@attrs.define(eq=False, kw_only=True, repr=False)
class Deciding:
    """Records that are written here change the group at once, so that what follows sees them.

    Every check that may refuse the event comes before the first of them.
    """

    context: GroupContext
    state: GroupState
    soft: SoftState
    now_ms: int
    refresh: RegexRefresh | None = attrs.field(default=None, init=False)
    downgrade: Downgrade | None = attrs.field(default=None, init=False)
    records: list[CoordinatorRecord] = attrs.field(factory=list, init=False)

    @property
    def topics(self) -> KnownTopics:
        return self.context.topics

    @property
    def settings(self) -> Settings:
        return self.context.settings

    @property
    def times(self) -> GroupTimes:
        return group_times(self.settings.coordinator, self.context.overrides.get(self.state.group_id, NO_OVERRIDES))

    # -- Records -----------------------------------------------------------------------------------------------------

    def write(self, record: CoordinatorRecord) -> None:
        self.state.apply(record)
        self.records.append(record)

    def raise_epoch(self) -> None:
        """Make the next heartbeat, or this one, compute another target assignment.

        The record goes in front of all others: if a crash keeps only some of them, the restored group knows that its
        target assignment is out of date.
        """
        record = CoordinatorRecord(
            ConsumerGroupMetadataKey(self.state.group_id),
            ConsumerGroupMetadataValue(epoch=self.state.epoch + 1, metadata_hash=self._metadata_hash()),
        )
        self.state.apply(record)
        self.records = [record, *(written for written in self.records if written.key != record.key)]
        self.soft.checked_version = self.topics.version

    def remove(self, member: Member) -> None:
        """Delete the records of a member, and its timers."""
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
        """Give a static member another id, and return it: with its partitions, at epoch 0."""
        target = self.state.target(before.member_id)
        member = attrs.evolve(before, member_id=member_id, member_epoch=0, previous_member_epoch=0)
        self.remove(before)
        self.write(member.metadata_record(self.state.group_id))
        self.write(target_record(self.state.group_id, member_id, target))
        self.write(member.assignment_record(self.state.group_id))
        return member

    # -- What follows from a change ----------------------------------------------------------------------------------

    def check_topics(self) -> None:
        """Raise the epoch if the subscribed topics have changed, and delete the record of Kafka 4.0.

        The first time after a restart it is also raised if the target assignment has a hole: the last records of the
        process before may be missing.
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
        """Compute the target assignment if it is out of date, and write its changes."""
        if self.state.epoch <= self.state.assignment_epoch:
            return
        assignor = preferred_assignor(self.state, self.settings.coordinator.group_consumer_assignors)
        waiting = self.soft.viewers.waiting
        for member_id, partitions in compute_target(self.state, self.topics, assignor, waiting=waiting).items():
            if self.state.targets.get(member_id) != partitions:
                self.write(target_record(self.state.group_id, member_id, partitions))
        self.write(self.state.assignment_epoch_record(self.state.epoch))

    def reconcile(self, member: Member, owned: Partitions | None) -> Member:
        """Take a member one step towards its target assignment, and return it."""
        updated = next_step(self.state, member, self.state.assignment_epoch, owned)
        if updated is member or updated == member:
            return member
        self.write(updated.assignment_record(self.state.group_id))
        if updated.uses_classic_protocol:
            return updated  # it has timers to join and to sync
        if updated.pending_revocation:
            self.set_timer(TimerKind.REBALANCE, updated, updated.rebalance_timeout_ms)
        else:
            self.cancel_timer(TimerKind.REBALANCE, updated.member_id)
        return updated

    def _metadata_hash(self) -> int:
        return self.topics.hash_of(self.state.subscribed_topic_names())

    # -- Timers ------------------------------------------------------------------------------------------------------

    def set_timer(self, kind: TimerKind, member: Member, after_ms: int) -> None:
        key = TimerKey(kind, member.member_id)
        deadline = self.soft.deadlines.get(key)
        if deadline is None:
            timer = Timer(partial(self.soft.expire, key))
            deadline = self.soft.deadlines[key] = Deadline(timer, member.member_epoch)
        deadline.member_epoch = member.member_epoch
        self.context.timers.set_after(deadline.timer, after_ms / 1000)

    def set_timer_if_absent(self, kind: TimerKind, member: Member, after_ms: int) -> None:
        if TimerKey(kind, member.member_id) not in self.soft.deadlines:
            self.set_timer(kind, member, after_ms)

    def cancel_timer(self, kind: TimerKind, member_id: str) -> None:
        deadline = self.soft.deadlines.pop(TimerKey(kind, member_id), None)
        if deadline is not None:
            self.context.timers.cancel(deadline.timer)
