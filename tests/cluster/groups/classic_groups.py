"""A consumer group on a clock of its own: for tests of the state machine, without trio and without a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from kafscale.cluster.groups.classic.group import ClassicGroup
from kafscale.cluster.groups.common.context import (
    MEMBER_EPOCH_SINCE,
    GroupContext,
    GroupMemberIdentity,
    GroupStateBytes,
    Join,
    Sync,
    Then,
)
from kafscale.cluster.groups.common.log_records import CoordinatorRecord, read_record
from kafscale.cluster.groups.common.topics import KnownTopics
from kafscale.concurrency.signals import OneShot
from kafscale.concurrency.timers import TimerQueue
from kafscale.config import Settings
from kafscale.wire.internal_topics.consumer_offsets import ClassicProtocol, GroupMetadataValue
from kafscale.wire.messages.groups import JoinGroupResponse, MemberIdentity, SyncGroupResponse

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
    protocols=(ClassicProtocol("range", subscription("t")),),
)


def result(reply: OneShot[JoinGroupResponse]) -> JoinGroupResponse:
    """Return what a join was answered."""
    assert reply.value is not None, "the join still waits"
    return reply.value


def error(reply: OneShot[JoinGroupResponse] | OneShot[SyncGroupResponse]) -> int:
    """Return the error code that a join or a sync was answered."""
    assert reply.value is not None, "the request still waits"
    return reply.value.error_code


def _never(*_arguments: object) -> None:
    """Fail: a classic group asks for no search and no downgrade."""
    raise AssertionError


@attrs.define(eq=False, kw_only=True)
class GroupHarness:
    """One group. Time passes by `advance`; writes are durable at once or, with `holds_writes`, by `finish_writes`."""

    settings: Settings = attrs.field(factory=Settings)
    holds_writes: bool = False
    seconds: float = attrs.field(default=0.0, init=False)
    timers: TimerQueue = attrs.field(init=False)
    group: ClassicGroup = attrs.field(init=False)
    stored: GroupMetadataValue | None = attrs.field(default=None, init=False)
    held: list[tuple[GroupMetadataValue, Then]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Continue with what was stored; everything else is lost."""
        self.held.clear()
        self.timers = TimerQueue(lambda: self.seconds)
        context = GroupContext(
            settings=self.settings,
            overrides={},
            topics=KnownTopics(),
            state_bytes=GroupStateBytes(),
            timers=self.timers,
            wall_clock_ms=lambda: WALL_CLOCK_START_MS + int(self.seconds * 1000),
            submit=self._submit,
            search=_never,
            downgrade=_never,
        )
        self.group = ClassicGroup("g", context)
        if self.stored is not None:
            self.group.restore(self.stored)

    def _submit(self, group_id: str, records: Sequence[CoordinatorRecord], then: Then, **_more: Any) -> None:
        (record,) = records
        written = read_record(record.encode())
        assert written is not None
        assert isinstance(written.value, GroupMetadataValue)
        self.held.append((written.value, then))
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
    ) -> OneShot[JoinGroupResponse]:
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
            protocols=tuple(ClassicProtocol(name, metadata) for name, metadata in protocols.items()),
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
    ) -> OneShot[SyncGroupResponse]:
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
        identity = GroupMemberIdentity(
            member_id=member_id, group_instance_id=group_instance_id, generation_id=generation_id
        )
        return self.group.heartbeat(identity)

    def check_commit(self, member_id: str, group_instance_id: str | None, generation_id: int) -> int:
        identity = GroupMemberIdentity(
            member_id=member_id, group_instance_id=group_instance_id, generation_id=generation_id
        )
        return self.group.check_commit(identity, MEMBER_EPOCH_SINCE)

    def leave(self, member_id: str, group_instance_id: str | None = None) -> int:
        (error_code,) = self.group.leave([MemberIdentity(member_id=member_id, group_instance_id=group_instance_id)])
        return error_code

    def stable(self, count: int, **join: Any) -> list[str]:
        """Form a stable group of so many new members; their ids, the leader's first. Member i is assigned `b"<i>"`."""
        replies = [self.join(**join) for _ in range(count)]
        self.advance(self.settings.coordinator.group_initial_rebalance_delay_ms / 1000)
        results = [reply.value for reply in replies]
        ids = [result.member_id for result in results if result is not None and result.error_code == 0]
        assert len(ids) == count, results
        waiting = [self.sync(member_id) for member_id in ids[1:]]
        waiting.append(self.sync(ids[0], {member_id: b"%d" % index for index, member_id in enumerate(ids)}))
        assert all(reply.is_set or self.holds_writes for reply in waiting)
        return ids
