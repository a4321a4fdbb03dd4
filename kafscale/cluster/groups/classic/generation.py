"""The present generation of a group: its number, the protocol that it runs, and what its members are told of it.

Its leader shares the work out once; what a member has of that is the member's own `assignment`. When a generation
begins, and when it is over, is decided by the group.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kafscale.cluster.groups.classic.members import Member, Members
from kafscale.cluster.groups.classic.subscription import subscribed_topics
from kafscale.cluster.groups.common.events import CONSUMER_PROTOCOL_TYPE, JoinedMember, JoinResult, Sync, SyncResult
from kafscale.cluster.groups.common.records import GroupRecord


@attrs.define(eq=False, repr=False)
class Generation:
    """The generation that the members are in, or that was the last one of a group without members."""

    members: Members
    generation_id: int = attrs.field(default=0, init=False)
    protocol_name: str | None = attrs.field(default=None, init=False)
    subscribed_topics: frozenset[str] | None = attrs.field(default=None, init=False)  # None: not known
    _shared_out_id: int | None = attrs.field(default=None, init=False)  # whose assignment the leader has given

    def begin(self) -> None:
        """Begin the next one with the present members: whoever was in the last one may have gone."""
        self.generation_id += 1
        self.protocol_name = self.members.select_protocol() if len(self.members) else None
        self._learn_subscription()

    def share_out(self, sync: Sync) -> dict[str, bytes] | None:
        """Return what the leader assigns to each member, by its id; None if it has done so in this generation."""
        if self._shared_out_id == self.generation_id:
            return None
        self._shared_out_id = self.generation_id
        return {member.member_id: sync.assignments.get(member.member_id, b"") for member in self.members}

    def runs(self, protocol_type: str | None, protocol_name: str | None) -> bool:
        """Tell whether these are its protocol; None is not compared, nor is a name where the generation has none."""
        if protocol_type not in (None, self.members.protocol_type):
            return False
        return self.protocol_name is None or protocol_name in (None, self.protocol_name)

    def joined(self, member: Member) -> JoinResult:
        """Return what a member is told when it has joined; the leader is told what the others want."""
        return JoinResult(
            member_id=member.member_id,
            generation_id=self.generation_id,
            protocol_type=self.members.protocol_type,
            protocol_name=self.protocol_name,
            leader_id=self.members.leader_id or "",
            members=self._as_told_to_leader() if member.member_id == self.members.leader_id else (),
        )

    def _as_told_to_leader(self) -> tuple[JoinedMember, ...]:
        name = self.protocol_name or ""
        return tuple(
            JoinedMember(
                member_id=member.member_id, group_instance_id=member.group_instance_id, metadata=member.metadata(name)
            )
            for member in self.members
        )

    def synced(self, member: Member) -> SyncResult:
        """Return what a member is told that asks for its assignment."""
        return SyncResult(
            protocol_type=self.members.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )

    def is_subscribed_to(self, topic: str) -> bool:
        """True also where it is not known what the members of a consumer group subscribe to."""
        if self.subscribed_topics is None:
            return self.members.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.subscribed_topics

    def record(self, state_timestamp_ms: int, assignments: Mapping[str, bytes] | None = None) -> GroupRecord:
        """Return what a restart needs to know; `assignments` by member id instead of those in force."""
        return GroupRecord(
            generation_id=self.generation_id,
            protocol_type=self.members.protocol_type,
            protocol_name=self.protocol_name,
            leader_id=self.members.leader_id,
            state_timestamp_ms=state_timestamp_ms,
            members=tuple(
                member.record(member.assignment if assignments is None else assignments[member.member_id])
                for member in self.members
            ),
        )

    def restore(self, record: GroupRecord) -> None:
        """Continue the generation of a record, whose members are back already."""
        self.generation_id = record.generation_id
        self.protocol_name = record.protocol_name
        self._learn_subscription()

    def _learn_subscription(self) -> None:
        self.subscribed_topics = None
        if self.members.protocol_type == CONSUMER_PROTOCOL_TYPE:
            name = self.protocol_name or ""
            self.subscribed_topics = subscribed_topics(member.metadata(name) for member in self.members)
