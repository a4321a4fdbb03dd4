"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

A heartbeat answers REBALANCE_IN_PROGRESS as long as the member has to revoke partitions or may get some. The member
joins again, with the partitions that it owns, and gets its assignment by SyncGroup. Its generation is its member epoch.
No member leads: assignments are the broker's.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from kafscale.cluster.groups.common.context import (
    CONSUMER_PROTOCOL_TYPE,
    NO_TIMEOUT_MS,
    UNKNOWN_MEMBER_ID,
    EventRefused,
    GroupMemberIdentity,
    Join,
    Sync,
    TimerKind,
    refused_join,
)
from kafscale.cluster.groups.consumer.deciding import Deciding
from kafscale.cluster.groups.consumer.heartbeats import (
    check_bytes,
    check_size,
    find_member,
    update_member,
)
from kafscale.cluster.groups.consumer.members import Member, MemberState, TopicSubscription
from kafscale.cluster.groups.consumer.migration import (
    EmbeddedSubscription,
    downgrade,
    fence,
    may_downgrade,
    read_subscription,
    write_assignment,
)
from kafscale.cluster.groups.consumer.regexes import regex_left
from kafscale.cluster.groups.consumer.state import GroupState
from kafscale.errors import DecodeError
from kafscale.wire import error_codes
from kafscale.wire.internal_topics.consumer_offsets import ClassicMemberMetadata
from kafscale.wire.messages.groups import JoinGroupResponse, MemberIdentity, SyncGroupResponse


def join(deciding: Deciding, request: Join) -> JoinGroupResponse:
    """Handle a JoinGroup of a group that has members, without waiting for others. Raises EventRefused."""
    state = deciding.state
    member_id = request.member_id or deciding.context.new_member_id()
    check_size(deciding, member_id)
    told = _check_protocols(deciding, request)
    if request.member_id == UNKNOWN_MEMBER_ID and request.member_id_required and request.group_instance_id is None:
        return refused_join(error_codes.MEMBER_ID_REQUIRED, member_id)
    known = _known(state, request)
    current = known or Member(member_id=member_id)
    check_bytes(deciding, known, _told(current, request, told))

    replaced = known if known is not None and known.member_id != member_id else None
    if replaced is not None:
        current = deciding.replace(replaced, member_id)
    after = _told(current, request, told)
    has_new_topics = update_member(deciding, current, after)
    has_new_topics |= regex_left(deciding, current.subscription, after)
    if has_new_topics:
        deciding.raise_epoch()
    deciding.check_topics()
    downgrades = replaced is not None and not replaced.uses_classic_protocol and may_downgrade(deciding)
    member = state.members[member_id]
    if downgrades:
        member = member if has_new_topics else deciding.reconcile(member, told.owned)
        downgrade(deciding, rebalances=has_new_topics, reason="the last member of the consumer protocol was replaced")
    else:
        deciding.update_target()
        member = deciding.reconcile(member, told.owned)
        deciding.cancel_timer(TimerKind.JOIN, member_id)
        deciding.set_timer(TimerKind.SESSION, member, request.session_timeout_ms)
        deciding.set_timer(TimerKind.SYNC, member, request.rebalance_timeout_ms)
    return JoinGroupResponse(
        member_id=member_id,
        generation_id=member.member_epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=request.protocols[0].name,
    )


def _check_protocols(deciding: Deciding, request: Join) -> EmbeddedSubscription:
    """Return a member's subscription. Raises EventRefused if it shares no protocol with the group."""
    state, names = deciding.state, {protocol.name for protocol in request.protocols}
    fits = any(state.classic_protocols[name] == state.classic_count for name in names)
    if request.protocol_type == CONSUMER_PROTOCOL_TYPE and names and fits:
        try:
            return read_subscription(request.protocols[0].metadata, deciding.topics)
        except DecodeError as exc:
            raise _inconsistent(f"The member's metadata is malformed: {exc}") from exc
    raise _inconsistent(f"Member {request.member_id}'s protocols are not supported.")


def _inconsistent(message: str) -> EventRefused:
    return EventRefused(error_codes.INCONSISTENT_GROUP_PROTOCOL, message)


def _known(state: GroupState, request: Join) -> Member | None:
    """Return the member that joins again, or whose place it takes; None for a new one. Raises EventRefused."""
    if request.group_instance_id is None:
        return state.members.get(request.member_id)
    if request.member_id == UNKNOWN_MEMBER_ID:
        return state.static_member(request.group_instance_id)
    return find_member(state, request.member_id, request.group_instance_id)


def _told(member: Member, request: Join, told: EmbeddedSubscription) -> Member:
    timeout_ms = request.rebalance_timeout_ms
    return attrs.evolve(
        member,
        instance_id=member.instance_id if request.group_instance_id is None else request.group_instance_id,
        rack_id=told.rack_id or member.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == NO_TIMEOUT_MS else timeout_ms,
        subscription=TopicSubscription(told.topic_names),  # it looks for topics by expressions itself
        client_id=request.client_id,
        client_host=request.client_host,
        classic=ClassicMemberMetadata(
            session_timeout_ms=request.session_timeout_ms, supported_protocols=list(request.protocols)
        ),
    )


def sync(deciding: Deciding, request: Sync) -> SyncGroupResponse:
    """Handle a SyncGroup: the member gets its assignment. Raises EventRefused."""
    state = deciding.state
    member, classic = _member(state, request.identity)
    protocol = classic.supported_protocols[0]
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE):
        raise _inconsistent("The protocol type is not that of the group.")
    if request.protocol_name not in (None, protocol.name):
        raise _inconsistent("The protocol name is not that of the join response.")
    # One that still has partitions to give up has joined already; the next epoch is for later.
    if state.epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        deciding.set_timer_if_absent(TimerKind.JOIN, member, member.rebalance_timeout_ms)
        return SyncGroupResponse(error_code=error_codes.REBALANCE_IN_PROGRESS)
    deciding.cancel_timer(TimerKind.SYNC, member.member_id)
    deciding.set_timer(TimerKind.SESSION, member, classic.session_timeout_ms)
    return SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=write_assignment(member.assigned, deciding.topics, protocol.metadata),
    )


def heartbeat(deciding: Deciding, identity: GroupMemberIdentity) -> int:
    """Handle a Heartbeat: the error code tells the member whether to join again. Raises EventRefused."""
    state = deciding.state
    member, classic = _member(state, identity)
    deciding.set_timer(TimerKind.SESSION, member, classic.session_timeout_ms)
    if not _has_to_join(state, member):
        return error_codes.NONE
    deciding.set_timer_if_absent(TimerKind.JOIN, member, member.rebalance_timeout_ms)
    return error_codes.REBALANCE_IN_PROGRESS


def _has_to_join(state: GroupState, member: Member) -> bool:
    """Tell whether there is a new epoch, or all partitions that the member lacks are free now."""
    if member.member_epoch < state.epoch:
        return True
    if member.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    target = state.target(member.member_id)
    missing = {id: partitions - member.assigned.get(id, frozenset()) for id, partitions in target.items()}
    return all(state.unowned(topic_id, partitions) == partitions for topic_id, partitions in missing.items())


def _member(state: GroupState, identity: GroupMemberIdentity) -> tuple[Member, ClassicMemberMetadata]:
    member = find_member(state, identity.member_id, identity.group_instance_id)
    if member.classic is None:
        raise EventRefused(
            error_codes.UNKNOWN_MEMBER_ID, f"Member {member.member_id} does not use the classic protocol."
        )
    if member.member_epoch != identity.generation_id:
        raise EventRefused(
            error_codes.ILLEGAL_GENERATION,
            f"The request generation id {identity.generation_id} is not equal to the member epoch "
            f"{member.member_epoch} of member {member.member_id}.",
        )
    return member, member.classic


def leave(deciding: Deciding, leavers: Sequence[MemberIdentity]) -> list[int]:
    """Handle a LeaveGroup: a code for each. An administrator may name members of the new protocol, too."""
    members: dict[str, Member] = {}
    codes = []
    for leaving in leavers:
        try:
            member = _leaver(deciding.state, leaving)
        except EventRefused as refused:
            codes.append(refused.error_code)
        else:
            members[member.member_id] = member
            codes.append(error_codes.NONE)
    fence(deciding, list(members.values()))
    return codes


def _leaver(state: GroupState, leaving: MemberIdentity) -> Member:
    if (
        leaving.member_id == UNKNOWN_MEMBER_ID
        and (member := state.static_member(leaving.group_instance_id)) is not None
    ):
        return member
    return find_member(state, leaving.member_id, leaving.group_instance_id)
