"""Members of the consumer protocol: a heartbeat joins, changes a subscription, reports partitions, and gets some.

All checks come before the first change.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from kafscale.cluster.groups.common.assignors import NO_PARTITIONS, Partitions, is_subset
from kafscale.cluster.groups.common.context import (
    MEMBER_METADATA_MAX_BYTES,
    NO_TIMEOUT_MS,
    EventRefused,
    Heartbeat,
    HeartbeatReply,
    TimerKind,
)
from kafscale.cluster.groups.consumer.deciding import Deciding
from kafscale.cluster.groups.consumer.members import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    Member,
    MemberState,
    TopicSubscription,
    metadata_bytes,
)
from kafscale.cluster.groups.consumer.migration import fence
from kafscale.cluster.groups.consumer.regexes import begin_refresh, check_regex, note_viewer, regex_left
from kafscale.cluster.groups.consumer.state import GroupState
from kafscale.wire import error_codes


def check_request(request: Heartbeat, assignors: Sequence[str]) -> None:
    """Raise EventRefused for a request that is wrong for any group."""
    needs_id = request.chooses_member_id or request.member_epoch > 0 or request.member_epoch == LEAVE_EPOCH
    if needs_id and not request.member_id.strip():
        raise EventRefused(error_codes.INVALID_REQUEST, "MemberId can't be empty.")
    for name, text in (("InstanceId", request.instance_id), ("RackId", request.rack_id)):
        if text is not None and not text.strip():
            raise EventRefused(error_codes.INVALID_REQUEST, f"{name} can't be empty.")
    if request.member_epoch == JOIN_EPOCH:
        _check_join(request)
    elif request.member_epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise EventRefused(error_codes.INVALID_REQUEST, "InstanceId can't be null.")
    elif request.member_epoch < LEAVE_STATIC_EPOCH:
        raise EventRefused(error_codes.INVALID_REQUEST, "MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        supported = ", ".join(assignors)
        raise EventRefused(
            error_codes.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {supported}.",
        )


def _check_join(request: Heartbeat) -> None:
    if request.rebalance_timeout_ms == NO_TIMEOUT_MS:
        raise EventRefused(error_codes.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
    if request.owned is None or request.owned:
        raise EventRefused(error_codes.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise EventRefused(
            error_codes.INVALID_REQUEST,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )


def heartbeat(deciding: Deciding, request: Heartbeat) -> HeartbeatReply:
    """Handle a heartbeat that has passed `check_request`. Raises EventRefused."""
    if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
        return _leave(deciding, request)
    state = deciding.state
    check_size(deciding, request.member_id)
    member_id = request.member_id or deciding.context.new_member_id()
    known = _known(state, request)
    current = known or Member(member_id=member_id)
    joins_static = request.instance_id is not None and request.member_epoch == JOIN_EPOCH
    is_same = current.member_id == member_id and _is_active(current)
    takes_place = joins_static and current.instance_id == request.instance_id and not is_same
    if not takes_place:
        check_epoch(current, request.member_epoch, request.owned)
    told = _told(current, request)
    check_regex(state, told.subscription)
    check_bytes(deciding, current if known is not None else None, told)

    if takes_place:
        current = deciding.replace(current, member_id)
        told = _told(current, request)
    has_new_topics = update_member(deciding, current, told)
    has_new_topics |= regex_left(deciding, current.subscription, told)
    note_viewer(deciding, current, told, request.viewer)
    deciding.refresh = begin_refresh(deciding, request.viewer)
    if has_new_topics or state.epoch == 0:
        deciding.raise_epoch()
    deciding.check_topics()
    deciding.update_target()
    member = deciding.reconcile(state.members[told.member_id], request.owned)
    times = deciding.times
    deciding.set_timer(TimerKind.SESSION, member, times.session_timeout_ms)
    wants_all = request.member_epoch == JOIN_EPOCH or request.is_full
    return HeartbeatReply(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        heartbeat_interval_ms=times.heartbeat_interval_ms,
        assignment=member.assigned if wants_all or member.assigned != current.assigned else None,
    )


def check_size(deciding: Deciding, member_id: str) -> None:
    """Raise EventRefused if this is a new member of a full group."""
    members, max_size = deciding.state.members, deciding.settings.limits.group_consumer_max_size_count
    if len(members) >= max_size and member_id not in members:
        raise EventRefused(
            error_codes.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {max_size} members.",
        )


def check_bytes(deciding: Deciding, before: Member | None, after: Member) -> None:
    """Raise EventRefused if a member's metadata is too large, or that of all groups would be."""
    if before == after:
        return
    size_bytes = metadata_bytes(after)
    if size_bytes > MEMBER_METADATA_MAX_BYTES:
        raise EventRefused(
            error_codes.INVALID_REQUEST,
            f"The member's subscription takes {size_bytes} bytes; {MEMBER_METADATA_MAX_BYTES} are allowed.",
        )
    if not deciding.context.state_bytes.has_room(size_bytes - (0 if before is None else metadata_bytes(before))):
        raise EventRefused(
            error_codes.COORDINATOR_NOT_AVAILABLE, "Consumer groups take as much memory as --group-state-bytes allows."
        )


def _known(state: GroupState, request: Heartbeat) -> Member | None:
    """Return the member that sends a heartbeat, or whose place it takes; None for a new one. Raises EventRefused."""
    if request.member_epoch != JOIN_EPOCH:
        return find_member(state, request.member_id, request.instance_id)
    static = state.static_member(request.instance_id)
    if static is not None and static.member_id != request.member_id and _is_active(static):
        raise EventRefused(
            error_codes.UNRELEASED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {request.instance_id} cannot join the group "
            f"because the instance id is owned by member {static.member_id}.",
        )
    return static if static is not None else state.members.get(request.member_id)


def _is_active(member: Member) -> bool:
    """Tell whether a static member is present, so that only the member itself may join with its instance id.

    It joins again under its id after a lost answer, or when it was fenced, and keeps its partitions, as a dynamic
    member does. Kafka 4.1 refuses it with UNRELEASED_INSTANCE_ID, which ends Java's consumer, and its partitions are
    not read until its session is over (apache/kafka#23542).
    """
    return not member.uses_classic_protocol and member.member_epoch != LEAVE_STATIC_EPOCH


def find_member(state: GroupState, member_id: str, instance_id: str | None) -> Member:
    """Return the member of this id and instance id; None for the latter is not compared. Raises EventRefused."""
    if instance_id is None:
        member = state.members.get(member_id)
        if member is None:
            message = f"Member {member_id} is not a member of group {state.group_id}."
            raise EventRefused(error_codes.UNKNOWN_MEMBER_ID, message)
        return member
    member = state.static_member(instance_id)
    if member is None:
        message = f"Instance id {instance_id} is unknown in group {state.group_id}."
        raise EventRefused(error_codes.UNKNOWN_MEMBER_ID, message)
    if member.member_id != member_id:
        raise EventRefused(
            error_codes.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
        )
    return member


def check_epoch(member: Member, epoch: int, owned: Partitions | None) -> None:
    """Raise EventRefused unless this is the member's epoch, or its last one, whose answer may have been lost.

    A fenced member may join again under its id at once (KAFKA-19233): it owns no partitions.
    """
    if epoch == JOIN_EPOCH:
        return
    if epoch == member.member_epoch:
        if member.state is not MemberState.UNKNOWN or owned == NO_PARTITIONS:
            return
        relation = "an unknown state at the"  # a later version wrote it
    elif epoch > member.member_epoch:
        relation = "a greater member"
    elif epoch == member.previous_member_epoch and owned is not None and is_subset(owned, member.assigned):
        return
    else:
        relation = "a smaller member"
    raise EventRefused(
        error_codes.FENCED_MEMBER_EPOCH,
        f"The consumer group member has {relation} epoch ({epoch}) than the one known by the group coordinator "
        f"({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def _told(member: Member, request: Heartbeat) -> Member:
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    before = member.subscription
    subscription = TopicSubscription(
        before.topic_names if names is None else frozenset(names), before.topic_regex if regex is None else regex
    )
    timeout_ms = request.rebalance_timeout_ms
    return attrs.evolve(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == NO_TIMEOUT_MS else timeout_ms,
        server_assignor=member.server_assignor if request.server_assignor is None else request.server_assignor,
        subscription=before if subscription == before else subscription,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
    )


def update_member(deciding: Deciding, before: Member, after: Member) -> bool:
    """Write a member's metadata if it is new, and tell whether it names other topics than before."""
    if after != before or after.member_id not in deciding.state.members:
        deciding.write(after.metadata_record(deciding.state.group_id))
    return after.subscription.topic_names != before.subscription.topic_names


def _leave(deciding: Deciding, request: Heartbeat) -> HeartbeatReply:
    """Remove a member; a static one that means to come back keeps its partitions for its session."""
    state = deciding.state
    member = find_member(state, request.member_id, request.instance_id)
    if request.member_epoch == LEAVE_STATIC_EPOCH:
        away = attrs.evolve(member, member_epoch=LEAVE_STATIC_EPOCH, pending_revocation=NO_PARTITIONS)
        deciding.write(away.assignment_record(state.group_id))
    else:
        fence(deciding, [member])
    return HeartbeatReply(member_id=request.member_id, member_epoch=request.member_epoch)
