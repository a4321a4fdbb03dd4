"""A consumer group on a clock of its own: for tests of the state machine, without trio and without a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from kafscale.cluster.coordinator.writer import Then
from kafscale.cluster.groups.classic.group import ClassicGroup, ClassicGroupContext
from kafscale.cluster.groups.common.events import (
    GroupMemberIdentity,
    GroupProtocol,
    GroupRecord,
    Join,
    JoinResult,
    Leaving,
    Sync,
    SyncResult,
)
from kafscale.cluster.groups.common.settings import GroupSettings
from kafscale.cluster.groups.log_records import GroupChange, group_record, read_record
from kafscale.concurrency.signals import OneShot
from kafscale.concurrency.timers import TimerQueue

WALL_CLOCK_START_MS = 1_700_000_000_000


def subscription(*topics: str) -> bytes:
    """A consumer's metadata, version 0, as every client writes it."""
    encoded = [name.encode() for name in topics]
    body = b"".join(len(name).to_bytes(2) + name for name in encoded)
    return bytes(2) + len(encoded).to_bytes(4) + body + (-1).to_bytes(4, signed=True)


SIMPLE = GroupMemberIdentity(member_id="")  # of one who commits offsets and is no member
JOIN = Join(
    member_id="",
    client_id="client",
    client_host="/127.0.0.1",
    session_timeout_ms=10_000,
    rebalance_timeout_ms=60_000,
    protocol_type="consumer",
    protocols=(GroupProtocol("range", subscription("t")),),
)


def result(reply: OneShot[JoinResult]) -> JoinResult:
    """Return what a join was answered."""
    assert reply.value is not None, "the join still waits"
    return reply.value


def error(reply: OneShot[JoinResult] | OneShot[SyncResult]) -> int:
    """Return the error code that a join or a sync was answered."""
    assert reply.value is not None, "the request still waits"
    return reply.value.error_code


@attrs.define(eq=False, kw_only=True)
class GroupHarness:
    """One group. Time passes by `advance`; writes are durable at once or, with `holds_writes`, by `finish_writes`."""

    settings: GroupSettings = attrs.field(factory=GroupSettings)
    holds_writes: bool = False
    seconds: float = attrs.field(default=0.0, init=False)
    timers: TimerQueue = attrs.field(init=False)
    group: ClassicGroup = attrs.field(init=False)
    stored: GroupRecord | None = attrs.field(default=None, init=False)
    held: list[tuple[GroupRecord, Then]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Continue with what was stored; everything else is lost."""
        self.held.clear()
        self.timers = TimerQueue(lambda: self.seconds)
        context = ClassicGroupContext(
            settings=self.settings,
            timers=self.timers,
            submit=self._submit,
            wall_clock_ms=lambda: WALL_CLOCK_START_MS + int(self.seconds * 1000),
        )
        self.group = ClassicGroup(group_id="g", context=context)
        if self.stored is not None:
            self.group.restore(self.stored)

    def _submit(self, group_id: str, record: GroupRecord, then: Then) -> None:
        change = read_record(group_record(group_id, record))
        assert isinstance(change, GroupChange)
        assert change.record is not None
        self.held.append((change.record, then))
        if not self.holds_writes:
            self.finish_writes()

    def finish_writes(self, *, durable: bool = True) -> None:
        held, self.held = self.held, []
        for record, then in held:
            if durable:
                self.stored = record
            then(durable)

    def advance(self, seconds: float) -> None:
        """Let time pass, and every deadline on the way."""
        end = self.seconds + seconds
        while self.timers.next_deadline <= end:
            self.seconds = max(self.seconds, self.timers.next_deadline)
            self.timers.fire_due()
        self.seconds = end

    def join(
        self,
        member_id: str = "",
        *,
        protocols: Mapping[str, bytes] | None = None,
        group_instance_id: str | None = None,
        **more: Any,
    ) -> OneShot[JoinResult]:
        """A JoinGroup of version 3 (no MEMBER_ID_REQUIRED), with a session of 10 s and 60 s to rebalance."""
        protocols = {"range": subscription("t")} if protocols is None else protocols
        request = Join(
            member_id=member_id,
            group_instance_id=group_instance_id,
            client_id="client",
            client_host="/127.0.0.1",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=tuple(GroupProtocol(name, metadata) for name, metadata in protocols.items()),
        )
        return self.group.join(attrs.evolve(request, **more))

    def sync(
        self,
        member_id: str,
        assignments: Mapping[str, bytes] | None = None,
        *,
        generation_id: int | None = None,
        group_instance_id: str | None = None,
        **more: Any,
    ) -> OneShot[SyncResult]:
        identity = GroupMemberIdentity(
            member_id=member_id,
            group_instance_id=group_instance_id,
            generation_id=self.group.generation_id if generation_id is None else generation_id,
        )
        return self.group.sync(attrs.evolve(Sync(identity=identity, assignments=dict(assignments or {})), **more))

    def heartbeat(
        self, member_id: str, *, generation_id: int | None = None, group_instance_id: str | None = None
    ) -> int:
        generation_id = self.group.generation_id if generation_id is None else generation_id
        return self.group.heartbeat(member_id, group_instance_id, generation_id)

    def leave(self, member_id: str, group_instance_id: str | None = None) -> int:
        (error_code,) = self.group.leave([Leaving(member_id=member_id, group_instance_id=group_instance_id)])
        return error_code

    def stable(self, count: int, **join: Any) -> list[str]:
        """Form a stable group of so many new members; their ids, the leader's first. Member i is assigned `b"<i>"`."""
        replies = [self.join(**join) for _ in range(count)]
        self.advance(self.settings.initial_rebalance_delay_ms / 1000)
        results = [reply.value for reply in replies]
        ids = [result.member_id for result in results if result is not None and result.error_code == 0]
        assert len(ids) == count, results
        waiting = [self.sync(member_id) for member_id in ids[1:]]
        waiting.append(self.sync(ids[0], {member_id: b"%d" % index for index, member_id in enumerate(ids)}))
        assert all(reply.is_set or self.holds_writes for reply in waiting)
        return ids
