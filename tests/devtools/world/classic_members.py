"""Members of consumer groups of the classic protocol, as processes that join, read, commit, pause, leave and die.

They send JoinGroup, SyncGroup and Heartbeat themselves, over crashes and moves of the coordinator. The leader assigns
the partitions, under a unique name. When the group rebalances a member gives up all its partitions, as with an eager
assignor. Now and then one commits with an earlier generation, which must be refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import trio

from kafscale.client.connection import Connection
from kafscale.wire import error_codes
from kafscale.wire.codec import encode
from kafscale.wire.messages.consumer_groups import ConsumerProtocolSubscription
from kafscale.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tests.devtools.history.group_reads import GroupReads, MemberReads
from tests.devtools.history.member_history import NO_GENERATION, Assignment, GenerationsSeen, Participant
from tests.devtools.world.consumer_members import MembersOfGroup, ProcessesInGroup
from tests.devtools.world.group_offsets import commit_offsets, fetch_offsets, note_offsets
from tests.devtools.world.workload import was_done

WRONG_OFFSET = 1_000_000  # never committed otherwise

_GONE = frozenset({error_codes.UNKNOWN_MEMBER_ID, error_codes.ILLEGAL_GENERATION})
_BEGINS_ANEW = _GONE | {error_codes.REBALANCE_IN_PROGRESS}


@attrs.define(eq=False, kw_only=True)
class ClassicMember(ProcessesInGroup):
    LIFE_MAX_SECONDS = 8.0
    BEAT_SECONDS = (0.25, 0.75)

    seen: GenerationsSeen
    reads: GroupReads
    _reads: MemberReads = attrs.field(init=False)
    _shared_count: int = attrs.field(default=0, init=False)  # assignments that it has made
    _former: Participant | None = attrs.field(default=None, init=False)  # as it was in a generation before

    def _begin(self, name: str) -> None:
        self.member = Participant(name=name)

    async def _work(self, connection: Connection) -> bool:
        if self.member.generation == NO_GENERATION:
            await self._join(connection, self.member)
        else:
            await self._beat(connection, self.member)
        await self._read(connection, self.member)
        return True

    async def _join(self, connection: Connection, member: Participant) -> None:
        answer = await self._send_join(connection, member)
        if answer.error_code == error_codes.MEMBER_ID_REQUIRED:
            member.member_id = answer.member_id
            answer = await self._send_join(connection, member)
        if answer.error_code == error_codes.UNKNOWN_MEMBER_ID:
            member.member_id = ""
        elif was_done(answer.error_code, f"join of {member.name}"):
            member.member_id = answer.member_id
            await self._sync(connection, member, answer)

    async def _send_join(self, connection: Connection, member: Participant) -> JoinGroupResponse:
        subscription = b"".join((bytes(2), *encode(ConsumerProtocolSubscription(topics=[self.topic.name]), 0)))
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=round(1000 * self.seen.session_seconds),
            rebalance_timeout_ms=round(1000 * self.seen.rebalance_seconds),
            member_id=member.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
        )
        return await connection.request(request, JoinGroupResponse)

    async def _sync(self, connection: Connection, member: Participant, joined: JoinGroupResponse) -> None:
        is_leader = joined.leader == joined.member_id
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=member.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=self._share_out(member, [joining.member_id for joining in joined.members]) if is_leader else [],
        )
        began, latest_then = trio.current_time(), self.seen.latest
        answer = await connection.request(request, SyncGroupResponse)
        if answer.error_code == error_codes.UNKNOWN_MEMBER_ID:
            member.member_id = ""
        elif answer.error_code not in _BEGINS_ANEW and was_done(answer.error_code, f"sync of {member.name}"):
            is_known = self.coordinates(connection, self.group)
            got = _decoded(joined.generation_id, bytes(answer.assignment))
            self.seen.assigned(member, got, began=began, latest_then=latest_then, is_known=is_known)

    def _share_out(self, member: Participant, member_ids: Sequence[str]) -> list[SyncGroupRequestAssignment]:
        self._shared_count += 1
        author = f"{member.name}/{self._shared_count}"
        order = self.random.sample(member_ids, len(member_ids))
        return [
            SyncGroupRequestAssignment(
                member_id=member_id,
                assignment=_encoded(author, range(place, self.topic.partition_count, len(order))),
            )
            for place, member_id in enumerate(order)
        ]

    async def _beat(self, connection: Connection, member: Participant) -> None:
        request = HeartbeatRequest(group_id=self.group, generation_id=member.generation, member_id=member.member_id)
        began = trio.current_time()
        code = (await connection.request(request, HeartbeatResponse)).error_code
        is_known = self.coordinates(connection, self.group)
        if code == error_codes.REBALANCE_IN_PROGRESS:
            await self._commit(connection)  # as one that has to give up what it has
            self._give_up(member)
        elif code in _GONE:
            self._refused(member, code, is_known=is_known)
        elif was_done(code, f"heartbeat of {member.name}"):
            if is_known:
                self.seen.heard(member, began=began)
            if self.random.random() < 0.5:
                await self._commit(connection)

    def _give_up(self, member: Participant) -> None:
        if member.generation != NO_GENERATION:
            self._former = attrs.evolve(member)
        self.seen.gave_up(member)
        member.generation = NO_GENERATION

    def _refused(self, member: Participant, code: int, *, is_known: bool) -> None:
        self.seen.refused(member, error_codes.name(code), is_known=is_known)
        self._give_up(member)
        if code == error_codes.UNKNOWN_MEMBER_ID:
            member.member_id = ""

    async def _leave(self, connection: Connection) -> None:
        member = self.member
        if not member.member_id:
            return
        member_id = member.member_id
        self._give_up(member)
        request = LeaveGroupRequest(group_id=self.group, members=[MemberIdentity(member_id=member_id)])
        answer = await connection.request(request, LeaveGroupResponse)
        code = answer.error_code or answer.members[0].error_code
        if code not in _GONE:
            was_done(code, f"leave of {member.name}")

    async def _read(self, connection: Connection, member: Participant) -> None:
        self._reads.keep(member.has)
        if new := sorted(member.has - self._reads.positions.keys()):
            found = await fetch_offsets(connection, self.group, self.topic, new)
            if was_done(found.error_code, f"offsets for {member.name}"):
                if self.coordinates(connection, self.group):
                    note_offsets(self.history, self.group, self.topic, found)
                self._reads.begin_all(found)
        await self._reads.poll(connection)

    async def _commit(self, connection: Connection) -> None:
        """Commit its position in one of its partitions; or, seldom, that of its former generation."""
        former, member = self._former, self.member
        if former is not None and former.generation < self.seen.latest and self.random.random() < 0.2:
            self._former = None
            partition = self.random.randrange(self.topic.partition_count)
            await self._send_commit(connection, former, partition, WRONG_OFFSET)
        if not member.has:
            return
        partition = self.random.choice(sorted(member.has))
        offset = self._reads.positions.get(partition)
        if offset is None:
            return
        where = self.topic.partition_name(partition)
        self.history.committing(self.group, where, offset)
        code = await self._send_commit(connection, member, partition, offset)
        if code in _GONE:
            self._refused(member, code, is_known=self.coordinates(connection, self.group))
        elif code == error_codes.REBALANCE_IN_PROGRESS:
            self._give_up(member)
        elif was_done(code, f"commit of {member.name}"):
            self.history.committed(self.group, where, offset)

    async def _send_commit(self, connection: Connection, member: Participant, partition: int, offset: int) -> int:
        generation, latest_then = member.generation, self.seen.latest
        codes = await commit_offsets(
            connection,
            self.group,
            self.topic,
            {partition: offset},
            generation_id_or_member_epoch=generation,
            member_id=member.member_id,
        )
        code = codes[partition]
        if not code:
            self.seen.committed(member, generation, latest_then=latest_then)
        return code


def _encoded(author: str, partitions: Sequence[int]) -> bytes:
    return f"{author}:{','.join(map(str, partitions))}".encode()


def _decoded(generation: int, data: bytes) -> Assignment:
    author, _, partitions = data.decode().partition(":")
    return Assignment(generation, frozenset(int(number) for number in partitions.split(",") if number), author)


@attrs.define(eq=False, kw_only=True)
class ClassicMembers(MembersOfGroup):
    RECORD = GenerationsSeen
    REBALANCE_SECONDS = 2.0  # less than a client waits for an answer

    seen: GenerationsSeen
    group: str = "classics"

    def _member(self, number: int, **shared: Any) -> ClassicMember:
        return ClassicMember(name=f"classic{number}", seen=self.seen, **shared)
