"""One consumer group of Kafka 4 as the coordinator holds it: its state machine, its timers, and its way to the log.

An event changes the group in memory at once. What it writes goes to the log as one submission, and the answer comes
through a OneShot when that is durable. So does an answer of an event that writes nothing, if something of the group is
on its way: it may rest on that, and a crash must not take back what a client was told.

What is submitted here is essential (`group_log`): it waits for room as long as that takes, and gets lost only where the
partition is led elsewhere from now on, or with the log. Then the group in memory is of no account either, so nothing is
ever undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import attrs

from kafscale.cluster.coordinator.writer import Then
from kafscale.cluster.groups.common.events import (
    GroupMemberIdentity,
    GroupRecord,
    Join,
    JoinResult,
    Leaving,
    Sync,
    SyncResult,
)
from kafscale.cluster.groups.consumer.deciding import ConsumerGroupContext
from kafscale.cluster.groups.consumer.events import (
    CoordinatorRecord,
    Downgrade,
    GroupOutcome,
    Heartbeat,
    HeartbeatReply,
    RegexRefresh,
    TimerChange,
    TimerKey,
)
from kafscale.cluster.groups.consumer.group import ConsumerGroup
from kafscale.cluster.groups.consumer.state import ConsumerGroupState
from kafscale.cluster.groups.log_records import consumer_group_records, group_record
from kafscale.concurrency.signals import OneShot
from kafscale.concurrency.timers import Timer, TimerQueue
from kafscale.wire import error_codes
from kafscale.wire.records import Record

R = TypeVar("R")

LATE = HeartbeatReply(error_code=error_codes.COORDINATOR_NOT_AVAILABLE, error_message="The coordinator is not ready.")


def _ignore_outcome(durable: bool) -> None:
    pass


def _ignore_late() -> None:
    pass


class Submit(Protocol):
    """Writes records of a group however long that takes, calls `then`, and before it `late` if it takes long."""

    def __call__(self, group_id: str, records: Sequence[Record], then: Then, *, late: Callable[[], None]) -> None: ...


@attrs.frozen(eq=False, kw_only=True, repr=False)
class HostContext:
    """Context that all consumer groups of a coordinator share.

    `search` starts a search for topics, whose result comes by `regexes_found`; `downgrade` puts a classic group into
    the place of this one.
    """

    consumer: ConsumerGroupContext
    timers: TimerQueue
    wall_clock_ms: Callable[[], int]
    submit: Submit
    search: Callable[[HostedGroup, RegexRefresh], None]
    downgrade: Callable[[HostedGroup, Downgrade], None]


@attrs.frozen(eq=False, repr=False)
class _Deadline:
    at_ms: int
    timer: Timer


@attrs.define(eq=False, repr=False)
class HostedGroup:
    """One group, until it is deleted, is a classic one, or is coordinated elsewhere."""

    context: HostContext
    machine: ConsumerGroup
    is_retired: bool = attrs.field(default=False, init=False)
    _deadlines: dict[TimerKey, _Deadline] = attrs.field(factory=dict, init=False)
    _writing_count: int = attrs.field(default=0, init=False)

    @property
    def group_id(self) -> str:
        return self.machine.group_id

    @property
    def state(self) -> ConsumerGroupState:
        return self.machine.state.state

    @property
    def is_empty(self) -> bool:
        return self.state is ConsumerGroupState.EMPTY

    @property
    def is_dead(self) -> bool:
        return self.is_retired or self.state is ConsumerGroupState.DEAD

    @classmethod
    def restored(cls, group_id: str, records: Iterable[CoordinatorRecord], context: HostContext) -> HostedGroup:
        """Return a group as its records have it."""
        restored = ConsumerGroup.restore(group_id, records, context.consumer, now_ms=context.wall_clock_ms())
        hosted = cls(context, restored.group)
        hosted._keep_time(restored.outcome.timers)
        return hosted

    @classmethod
    def begun(
        cls, group_id: str, request: Heartbeat, context: HostContext, *, before: Sequence[Record] = ()
    ) -> tuple[HostedGroup | None, OneShot[HeartbeatReply]]:
        """Return a new group with its first member, or None if the heartbeat is refused, and the answer.

        The records `before` are written in front of the group's.
        """
        machine = ConsumerGroup.new(group_id, context.consumer)
        outcome = machine.heartbeat(request, now_ms=context.wall_clock_ms())
        if not machine.exists:
            machine.forget()
            return None, OneShot(outcome.reply)
        hosted = cls(context, machine)
        return hosted, hosted._answer(outcome, LATE, before=before)

    @classmethod
    def upgraded(
        cls, classic: GroupRecord, group_id: str, request: Heartbeat, context: HostContext
    ) -> tuple[HostedGroup | None, OneShot[HeartbeatReply]]:
        """Return a classic group that has members as a consumer group, or None if that is refused, and the answer."""
        joined = ConsumerGroup.join_classic(
            group_id, classic, request, context.consumer, now_ms=context.wall_clock_ms()
        )
        if joined.group is None:
            return None, OneShot(joined.outcome.reply)
        hosted = cls(context, joined.group)
        return hosted, hosted._answer(
            joined.outcome, LATE, before=[group_record(group_id, None, timestamp_ms=context.wall_clock_ms())]
        )

    # -- Members -----------------------------------------------------------------------------------------------------

    def consumer_heartbeat(self, request: Heartbeat) -> OneShot[HeartbeatReply]:
        """Handle a ConsumerGroupHeartbeat."""
        return self._answer(self.machine.heartbeat(request, now_ms=self._now_ms()), LATE)

    def join(self, request: Join) -> OneShot[JoinResult]:
        """Handle a JoinGroup of a group that has members."""
        late = JoinResult(error_code=error_codes.COORDINATOR_NOT_AVAILABLE, member_id=request.member_id)
        return self._answer(self.machine.join(request, now_ms=self._now_ms()), late)

    def sync(self, request: Sync) -> OneShot[SyncResult]:
        """Handle a SyncGroup."""
        late = SyncResult(error_code=error_codes.COORDINATOR_NOT_AVAILABLE)
        return self._answer(self.machine.sync(request, now_ms=self._now_ms()), late)

    def heartbeat(self, identity: GroupMemberIdentity) -> int:
        """Handle a Heartbeat, which writes nothing: the error code."""
        outcome = self.machine.classic_heartbeat(identity, now_ms=self._now_ms())
        assert not outcome.records
        self._keep_time(outcome.timers)
        return outcome.reply

    def leave(self, leavers: Sequence[Leaving]) -> Sequence[int]:
        """Handle a LeaveGroup: an error code for each, which is good when all that was submitted is durable."""
        outcome = self.machine.leave(leavers, now_ms=self._now_ms())
        self._settle(outcome)
        return outcome.reply

    # -- Time, and what others find out ------------------------------------------------------------------------------

    def regexes_found(self, found: Mapping[str, frozenset[str]], version: int) -> None:
        """Take over what was found for regular expressions, at this version of the topics."""
        if not self.is_dead:
            self._settle(self.machine.regexes_found(found, version=version, now_ms=self._now_ms()))

    def restart_sessions(self) -> None:
        """Begin the sessions of its members now."""
        self._keep_time(self.machine.restart_sessions(now_ms=self._now_ms()).timers)

    def _expire(self, key: TimerKey) -> None:
        at_ms = self._deadlines.pop(key).at_ms
        # By the clock that does not jump it is time, whatever the other one says.
        self._settle(self.machine.expire(key, now_ms=max(self._now_ms(), at_ms)))

    def _keep_time(self, changes: Iterable[TimerChange]) -> None:
        now_ms, timers = self._now_ms(), self.context.timers
        for change in changes:
            known = self._deadlines.pop(change.key, None)
            if change.deadline_ms is not None:
                timer = Timer(partial(self._expire, change.key)) if known is None else known.timer
                self._deadlines[change.key] = _Deadline(change.deadline_ms, timer)
                timers.set_after(timer, max(change.deadline_ms - now_ms, 0) / 1000)
            elif known is not None:
                timers.cancel(known.timer)

    # -- The end -----------------------------------------------------------------------------------------------------

    def tombstones(self) -> Sequence[Record]:
        """Delete a group without members, and return what says so in the log, for the caller to write."""
        outcome = self.machine.delete(now_ms=self._now_ms())
        assert outcome.reply == error_codes.NONE
        self._keep_time(outcome.timers)
        return consumer_group_records(outcome.records, timestamp_ms=self._now_ms())

    def delete(self) -> None:
        """Delete a group without members, in the log and in memory, to make place for another one."""
        self.context.submit(self.group_id, self.tombstones(), _ignore_outcome, late=_ignore_late)
        self.retire()

    def retire(self) -> None:
        """Stop: another group has its place, or another broker coordinates it."""
        self.is_retired = True
        for deadline in self._deadlines.values():
            self.context.timers.cancel(deadline.timer)
        self._deadlines.clear()
        self.machine.forget()

    # -- The log -----------------------------------------------------------------------------------------------------

    def _answer(self, outcome: GroupOutcome[R], late: R, *, before: Sequence[Record] = ()) -> OneShot[R]:
        """Do what an event leads to; the answer is `late` if the way into the log takes long, or comes to nothing."""
        reply: OneShot[R] = OneShot()

        def settled(durable: bool) -> None:
            _set_once(reply, outcome.reply if durable else late)

        self._settle(outcome, settled, before=before, late=partial(_set_once, reply, late))
        return reply

    def _settle(
        self,
        outcome: GroupOutcome[R],
        then: Then = _ignore_outcome,
        *,
        before: Sequence[Record] = (),
        late: Callable[[], None] = _ignore_late,
    ) -> None:
        """Do what an event leads to, and call `then` when all that it rests on is durable, or lost."""
        self._keep_time(outcome.timers)
        if outcome.refresh is not None:
            self.context.search(self, outcome.refresh)
        records = [*before, *consumer_group_records(outcome.records, timestamp_ms=self._now_ms())]
        if outcome.downgrade is not None:
            records.append(group_record(self.group_id, outcome.downgrade.group, timestamp_ms=self._now_ms()))
        if records or self._writing_count:
            self._writing_count += 1
            self.context.submit(self.group_id, records, partial(self._written, then), late=late)
        else:
            then(True)
        if outcome.downgrade is not None:
            self.context.downgrade(self, outcome.downgrade)

    def _written(self, then: Then, durable: bool) -> None:
        self._writing_count -= 1
        then(durable)

    def _now_ms(self) -> int:
        return self.context.wall_clock_ms()


def _set_once(reply: OneShot[R], value: R) -> None:
    if not reply.is_set:
        reply.set(value)
