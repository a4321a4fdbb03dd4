"""OffsetCommit (8): store how far a group has read. Durable before it is acknowledged; up to 1,000 all or none.

v2  retention time chosen by the client (-1: the broker's), until v4
v3  throttle time
v6  leader epochs (KIP-320)
v7  static members (KIP-345)
v8  flexible
v9  either protocol of groups (KIP-848); GROUP_ID_NOT_FOUND for a member of a group that does not exist; a member of
    KIP-848's protocol says its epoch, or gets STALE_MEMBER_EPOCH, and UNSUPPORTED_VERSION before this version
v10 topics by id; UNKNOWN_TOPIC_ID where no topic has it

Generation -1 and an empty member id stand for a consumer without a group, or an administrator: it may commit while the
group is empty, and makes a group that does not exist. Partitions that do not exist or whose topic is deleted meanwhile,
and metadata that is too long, are refused one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import attrs

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import coordinator_error, prepare_groups, refusal_error
from kafscale.api.handling.partitions import know_topics, name_of
from kafscale.api.handling.services import Services
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups.common.context import MEMBER_EPOCH_SINCE, GroupMemberIdentity
from kafscale.cluster.groups.coordinator import GroupCoordinator
from kafscale.concurrency.signals import OneShot
from kafscale.concurrency.turns import Turns
from kafscale.wire.error_codes import (
    GROUP_ID_NOT_FOUND,
    NONE,
    OFFSET_METADATA_TOO_LARGE,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kafscale.wire.internal_topics.consumer_offsets import NO_EXPIRY, OffsetCommitValue
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    TxnOffsetCommitRequestTopic,
)
from kafscale.wire.schema import mapped

COMMIT_PIECE_COUNT = 1000  # offsets at a time: 2 ms of the event loop
FIRST_VERSION_WITH_GROUP_NOT_FOUND = 9
FIRST_VERSION_WITH_TOPIC_IDS = 10
RETENTION_MAX_MS = 2**62  # for ever; the offset's record has 64 bits for the moment at which it ends


async def commit_in_pieces(
    groups: GroupCoordinator,
    group_id: str,
    identity: GroupMemberIdentity,
    *,
    offsets: Mapping[TopicPartition, OffsetCommitValue],
    check: Callable[[TopicPartition], int] = lambda at: NONE,
    version: int = MEMBER_EPOCH_SINCE,
) -> Mapping[TopicPartition, int]:
    """Commit offsets as `GroupCoordinator.commit` does; return an error code for each of those that are not committed.

    They are committed in pieces, up to the first that fails. `check` is asked just before: the topic may be gone.
    """
    refused: dict[TopicPartition, int] = {}
    pending = list(offsets)
    for start in range(0, len(pending), COMMIT_PIECE_COUNT):
        piece = pending[start : start + COMMIT_PIECE_COUNT]
        refused |= {at: error_code for at in piece if (error_code := check(at)) != NONE}
        wanted = {at: offsets[at] for at in piece if at not in refused}
        committing = groups.commit(group_id, identity, wanted, version=version) if wanted else OneShot(NONE)
        error_code = await committing.wait()
        if error_code != NONE:
            return dict.fromkeys(pending[start:], error_code) | refused
    return refused


@attrs.frozen(eq=False, repr=False)
class CheckedOffsets:
    services: Services
    by_id: bool
    offsets: dict[TopicPartition, OffsetCommitValue] = attrs.field(factory=dict, init=False)
    refused: dict[TopicPartition, int] = attrs.field(factory=dict, init=False)
    _topic_ids: dict[str, bytes] = attrs.field(factory=dict, init=False)

    async def add(
        self,
        topics: Iterable[OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic],
        retention_ms: int | None = None,
    ) -> None:
        """Check partitions; topics that the request names by id get their names."""
        turns, now_ms = Turns(), self.services.groups.wall_clock_ms()
        expire_timestamp_ms = NO_EXPIRY if retention_ms is None else now_ms + retention_ms
        for topic in topics:
            await turns.step()
            if self.by_id and isinstance(topic, OffsetCommitRequestTopic):
                topic.name = name_of(self.services, topic.topic_id)
                self._topic_ids[topic.name] = topic.topic_id
            for partition in topic.partitions:
                await turns.step()
                at = TopicPartition(topic.name, partition.partition_index)
                error_code = self._check(at, partition.committed_metadata)
                if error_code != NONE:
                    self.refused[at] = error_code
                    continue
                self.offsets[at] = OffsetCommitValue(
                    offset=partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.committed_metadata or "",
                    commit_timestamp_ms=now_ms,
                    expire_timestamp_ms=expire_timestamp_ms,
                    topic_id=self._topic_ids[topic.name],
                )

    def _check(self, at: TopicPartition, metadata: str | None) -> int:
        topic = self.services.topics.get(at.topic)
        if topic is not None and self._topic_ids.setdefault(at.topic, topic.topic_id) != topic.topic_id:
            topic = None  # another one has had its name since
        if topic is None and self.by_id:
            return UNKNOWN_TOPIC_ID
        if topic is None or not 0 <= at.partition < topic.partition_count:
            return UNKNOWN_TOPIC_OR_PARTITION
        return OFFSET_METADATA_TOO_LARGE if self.services.groups.is_metadata_too_large(metadata) else NONE

    def check_again(self, group_id: str, at: TopicPartition) -> int:
        """Return the error code of a partition that is about to be written; others have run since its first check."""
        if self.services.topics.by_id(self._topic_ids[at.topic]) is None:
            return UNKNOWN_TOPIC_ID if self.by_id else UNKNOWN_TOPIC_OR_PARTITION
        return coordinator_error(self.services, group_id)


async def handle(services: Services, call: Call, request: OffsetCommitRequest) -> OffsetCommitResponse:
    await prepare_groups(services)
    by_id = call.version >= FIRST_VERSION_WITH_TOPIC_IDS
    if by_id:
        await know_topics(services, topic_ids=(topic.topic_id for topic in request.topics))
    else:
        await know_topics(services, (topic.name for topic in request.topics))
    checked, group_id = CheckedOffsets(services, by_id), request.group_id
    retention_ms = min(request.retention_time_ms, RETENTION_MAX_MS) if request.retention_time_ms >= 0 else None
    await checked.add(request.topics, retention_ms)
    identity = GroupMemberIdentity(
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation_id=request.generation_id_or_member_epoch,
    )
    error_code, refused = NONE, checked.refused
    # A client without a generation makes the group.
    is_missing = identity.generation_id >= 0 and not services.groups.exists(group_id)
    if call.version >= FIRST_VERSION_WITH_GROUP_NOT_FOUND and is_missing:
        error_code = coordinator_error(services, group_id) or GROUP_ID_NOT_FOUND
    elif checked.offsets:
        check = partial(checked.check_again, group_id)
        refused |= await commit_in_pieces(
            services.groups, group_id, identity, offsets=checked.offsets, check=check, version=call.version
        )
    elif not refused and (error_code := coordinator_error(services, group_id)) == NONE:
        error_code = await services.groups.commit(group_id, identity, {}, version=call.version).wait()
    if (lead := await refusal_error(services, {error_code, *refused.values()})) != NONE:
        error_code, refused = lead, {}

    def outcome(topic: str, partition: OffsetCommitRequestPartition) -> OffsetCommitResponsePartition:
        at = TopicPartition(topic, partition.partition_index)
        return OffsetCommitResponsePartition(partition_index=at.partition, error_code=refused.get(at, error_code))

    def outcomes(topic: OffsetCommitRequestTopic) -> OffsetCommitResponseTopic:
        partitions = mapped(partial(outcome, topic.name), topic.partitions)
        return OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)

    return OffsetCommitResponse(topics=mapped(outcomes, request.topics))


API = Api(8, "OffsetCommit", 2, 10, OffsetCommitRequest, OffsetCommitResponse, handle)
