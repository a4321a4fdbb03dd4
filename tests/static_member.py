"""A static member of a group, of either protocol, that shows how a coordinator answers it."""

from __future__ import annotations

from typing import Final

import attrs

from kafscale.client.connection import Connection
from kafscale.cluster.metadata.converter import random_uuid, uuid_text
from kafscale.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
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
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

GROUP: Final = "shipping"
INSTANCE: Final = "instance-1"
TOPIC: Final = "orders"
SESSION_MS: Final = 1_800_000
JOIN_EPOCH: Final = 0
LEAVE_STATIC_EPOCH: Final = -2


@attrs.define(eq=False)
class StaticMember:
    """The only member of its group. Its requests return their error codes."""

    client: Connection
    is_classic: bool = attrs.field(kw_only=True)
    member_id: str = ""
    generation_id: int = -1

    async def join(self) -> int:
        """Take the place of the instance id, under a member id of its own."""
        return await (self._join_and_sync() if self.is_classic else self._consumer_heartbeat(JOIN_EPOCH))

    async def _join_and_sync(self) -> int:
        joined = await self._join()
        if joined.error_code:
            return joined.error_code
        self.member_id, self.generation_id = joined.member_id, joined.generation_id
        return await self._sync()

    async def ask(self, what: str) -> int:
        """Send one more request."""
        if what == "heartbeat":
            return await self._heartbeat()
        if what == "commit":
            return await self._commit()
        if what == "join":
            return (await self._join()).error_code
        if what == "sync":
            return await self._sync()
        if what == "leave":
            return await self._leave()
        return await self._consumer_heartbeat(JOIN_EPOCH if what == "new consumer" else self.generation_id)

    async def leave_for_a_while(self) -> int:
        """KIP-848: let another member take the place."""
        return await self._consumer_heartbeat(LEAVE_STATIC_EPOCH)

    async def _join(self) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=self.member_id,
            group_instance_id=INSTANCE,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        return await self.client.request(request, JoinGroupResponse)

    async def _sync(self) -> int:
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=INSTANCE,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=self.member_id, assignment=b"all")],
        )
        return (await self.client.request(request, SyncGroupResponse)).error_code

    async def _heartbeat(self) -> int:
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=INSTANCE,
        )
        return (await self.client.request(request, HeartbeatResponse)).error_code

    async def _commit(self) -> int:
        partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=self.generation_id,
            member_id=self.member_id,
            group_instance_id=INSTANCE,
            topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)],
        )
        return (await self.client.request(request, OffsetCommitResponse)).topics[0].partitions[0].error_code

    async def _leave(self) -> int:
        members = [MemberIdentity(member_id=self.member_id, group_instance_id=INSTANCE)]
        answer = await self.client.request(LeaveGroupRequest(group_id=GROUP, members=members), LeaveGroupResponse)
        return answer.error_code or answer.members[0].error_code

    async def _consumer_heartbeat(self, epoch: int) -> int:
        """KIP-848: say that it is there, in an epoch."""
        joins = epoch == JOIN_EPOCH
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id or uuid_text(random_uuid()),
            member_epoch=epoch,
            instance_id=INSTANCE,
            rebalance_timeout_ms=SESSION_MS if joins else -1,
            subscribed_topic_names=[TOPIC] if joins else None,
            topic_partitions=[] if joins else None,
        )
        answer = await self.client.request(request, ConsumerGroupHeartbeatResponse)
        if answer.error_code == 0:
            self.member_id, self.generation_id = answer.member_id or self.member_id, answer.member_epoch
        return answer.error_code
