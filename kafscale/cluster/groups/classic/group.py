"""One consumer group: the classic rebalance protocol as a synchronous state machine (KIP-62, 345, 394, 814).

    Empty ──join──► PreparingRebalance ──all joined, or time is up──► CompletingRebalance ──assignment──► Stable
      ▲                  │      ▲                                            │                              │
      └──none joined ────┘      └──── a member joins, leaves, falls silent or changes its mind ─────────────┘

    Empty ──deleted──► Dead

Requests are method calls; a join or sync that waits is answered through the OneShot that the call returned, a deadline
is a call from its Timer, and `context.submit` calls back when records are durable. Nothing here awaits, so every event
finds the group in a state of the picture. The rest is as in Kafka 4.1, but every request is answered: one that a later
request of the same member replaces gets COORDINATOR_NOT_AVAILABLE, after which clients retry.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import attrs

from kafscale.cluster.groups.classic.members import ClassicMember, ClassicMembers, Generation, JoinTime, new_member_id
from kafscale.cluster.groups.common.context import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    UNKNOWN_MEMBER_ID,
    GroupContext,
    GroupMemberIdentity,
    Join,
    Sync,
    Then,
    ignore_outcome,
    join_bytes,
    refused_join,
)
from kafscale.cluster.groups.common.log_records import CoordinatorRecord, group_tombstone
from kafscale.concurrency.signals import OneShot
from kafscale.concurrency.timers import Timer
from kafscale.wire import error_codes
from kafscale.wire.internal_topics.consumer_offsets import (
    ClassicProtocol,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from kafscale.wire.messages.groups import JoinGroupResponse, MemberIdentity, SyncGroupResponse

logger = logging.getLogger(__name__)

NO_PROTOCOLS: Mapping[str, Sequence[ClassicProtocol]] = {}


class ClassicGroupState(enum.Enum):
    """The values are what clients are shown."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@attrs.frozen(eq=False, repr=False)
class _Replacement:
    """A static member with a new id that is not durable yet."""

    member: ClassicMember
    former: ClassicMember  # as it was
    reply: OneShot[JoinGroupResponse]
    leader_id: str | None  # to name as leader; None: the leader of the group


@attrs.define(eq=False, repr=False)
class ClassicGroup(Generation):
    """One group, from its first member or committed offset until it is deleted."""

    group_type: ClassVar = "classic"

    group_id: str
    _context: GroupContext
    state: ClassicGroupState = attrs.field(default=ClassicGroupState.EMPTY, init=False)
    state_timestamp_ms: int = attrs.field(init=False)  # wall clock
    members: ClassicMembers = attrs.field(init=False)
    _join_time: JoinTime = attrs.field(init=False)
    _sync_timer: Timer = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        context = self._context
        self.members = ClassicMembers(context.state_bytes)
        self.state_timestamp_ms = context.wall_clock_ms()
        self._join_time = JoinTime(
            initial_delay_ms=context.settings.coordinator.group_initial_rebalance_delay_ms,
            timers=context.timers,
            is_up=self._complete_join,
        )
        self._sync_timer = Timer(self._sync_time_is_up)

    @property
    def protocol_type(self) -> str | None:
        """None for a group that has only committed offsets."""
        return self.members.protocol_type

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        """Tell whether the group exists and has no members."""
        return self.state is ClassicGroupState.EMPTY

    @property
    def is_dead(self) -> bool:
        """Tell whether the group is being deleted, or is coordinated by another broker."""
        return self.state is ClassicGroupState.DEAD

    def more_bytes(self, join: Join) -> int:
        """Return by how many bytes a join would make the state of all groups grow."""
        member = self.members.get(join.member_id)
        return join_bytes(join) - (0 if member is None else member.counted_bytes - len(member.assignment))

    @property
    def assigned_bytes(self) -> int:
        return sum(len(member.assignment) for member in self.members)

    # -- Joining -----------------------------------------------------------------------------------------------------

    def join(self, join: Join) -> OneShot[JoinGroupResponse]:
        """Join the next generation; answered when that begins, or at once if no rebalance is needed."""
        reply: OneShot[JoinGroupResponse] = OneShot()
        if (error_code := self._refuse_join(join)) != error_codes.NONE:
            member_id = join.member_id if error_code != error_codes.GROUP_MAX_SIZE_REACHED else UNKNOWN_MEMBER_ID
            reply.set(refused_join(error_code, member_id))
        elif join.member_id != UNKNOWN_MEMBER_ID:
            self._join_known(join, reply)
        elif (existing := self.members.static_member_id(join.group_instance_id)) is not None:
            self._replace_static(existing, join, reply)
        elif join.member_id_required and join.group_instance_id is None:
            reply.set(refused_join(error_codes.MEMBER_ID_REQUIRED, self._promise_place(join)))
        else:
            self._admit(new_member_id(join), join, reply)
        return reply

    def _refuse_join(self, join: Join) -> int:
        if self.state is ClassicGroupState.DEAD:
            return error_codes.COORDINATOR_NOT_AVAILABLE
        member = self.members.get(join.member_id)
        if not self._has_room_for(join, member):
            if member is not None:
                self._remove(member)
                self._complete_join_if_ready()
            return error_codes.GROUP_MAX_SIZE_REACHED
        if self.state is ClassicGroupState.EMPTY:
            fits = bool(join.protocol_type and join.protocols)
        else:
            fits = join.protocol_type == self.protocol_type and self.members.shares_protocol(join.protocols)
        return error_codes.NONE if fits else error_codes.INCONSISTENT_GROUP_PROTOCOL

    def _has_room_for(self, join: Join, member: ClassicMember | None) -> bool:
        # A group that became too large drops those members that rejoin last.
        limit = self._context.settings.limits.max_group_members_count
        if join.member_id == UNKNOWN_MEMBER_ID and len(self.members.pending_join) >= limit:
            return False
        match self.state:
            case ClassicGroupState.PREPARING_REBALANCE:
                waits = member is not None and member.awaiting_join is not None
                return waits or self.members.awaiting_join_count < limit
            case ClassicGroupState.COMPLETING_REBALANCE | ClassicGroupState.STABLE:
                return member is not None or len(self.members) < limit
            case _:
                return True

    def _promise_place(self, join: Join) -> str:
        """Return a member id, with which the client has to come back within its session timeout."""
        member_id = new_member_id(join)
        timer = Timer(partial(self._pending_expired, member_id))
        self.members.promise(member_id, timer)
        self._context.timers.set_after(timer, join.session_timeout_ms / 1000)
        return member_id

    def _join_known(self, join: Join, reply: OneShot[JoinGroupResponse]) -> None:
        if join.member_id in self.members.pending_join and join.group_instance_id is None:
            self._admit(join.member_id, join, reply)
            return
        error_code = self.members.check(join.member_id, join.group_instance_id)
        member = self.members.get(join.member_id)
        if error_code != error_codes.NONE or member is None:
            reply.set(refused_join(error_code, join.member_id))
        elif self._keeps_generation(member, join):
            reply.set(self.joined(member))
        else:
            self._update(member, join, reply)
            self._rebalance_or_complete_join(f"member {member.member_id!r} rejoins: {join.reason}")

    def _keeps_generation(self, member: ClassicMember, join: Join) -> bool:
        # A leader that joins a stable group asks for a new assignment.
        if self.state is ClassicGroupState.STABLE and self.members.leader_id == member.member_id:
            return False
        return self.state is not ClassicGroupState.PREPARING_REBALANCE and member.protocols == join.protocols

    def _admit(self, member_id: str, join: Join, reply: OneShot[JoinGroupResponse]) -> None:
        pending = self.members.pending_join.get(member_id)
        if pending is not None:
            self._context.timers.cancel(pending)
        session = Timer(lambda: self._session_expired(member))
        member = ClassicMember.of(join, member_id=member_id, protocols=join.protocols, session=session)
        member.is_new = True
        self._join_time.newcomer()
        self.members.add(member, join.protocol_type)
        self.members.await_join(member, reply)
        # It can't send heartbeats while its join waits, so its session begins with the answer. If the client has given
        # up meanwhile, this member must not stay for ever.
        self._context.timers.set_after(member.session, NEW_MEMBER_JOIN_TIMEOUT_MS / 1000)
        self._rebalance_or_complete_join(f"member {member_id!r} joins: {join.reason}")

    def _update(self, member: ClassicMember, join: Join, reply: OneShot[JoinGroupResponse]) -> None:
        self.members.update(member, join)
        self.members.answer_join(member, refused_join(error_codes.COORDINATOR_NOT_AVAILABLE, member.member_id))
        self.members.await_join(member, reply)

    def _replace_static(self, old_id: str, join: Join, reply: OneShot[JoinGroupResponse]) -> None:
        """Let a static member that has restarted take its place under a new id, and fence the old id."""
        member = self.members.get(old_id)
        assert member is not None
        fenced = error_codes.FENCED_INSTANCE_ID
        self.members.answer_join(member, refused_join(fenced, old_id))
        self.members.answer_sync(member, SyncGroupResponse(error_code=fenced))
        former, former_leader_id = attrs.evolve(member), self.members.leader_id or ""
        self.members.rename(member, new_member_id(join))
        member.is_new = False
        self._update(member, join, reply)
        logger.info("static member %r of group %r is %r now", join.group_instance_id, self.group_id, member.member_id)
        if self.state is ClassicGroupState.STABLE and self.members.select_protocol() == self.protocol_name:
            # A client that can't skip the assignment must not learn that it leads: it would assign anew.
            leader_id = None if join.can_skip_assignment else former_leader_id
            then = partial(self._static_replaced, _Replacement(member, former, reply, leader_id))
            self._submit(self.record(), then)
        elif self.state is ClassicGroupState.PREPARING_REBALANCE:
            self._complete_join_if_ready()
        else:  # the leader may have been told the old id already, and its assignment would miss the new one
            self.rebalance(f"static member {join.group_instance_id!r} came back: {join.reason}")

    def _static_replaced(self, replacement: _Replacement, durable: bool) -> None:
        """Answer a static member whose new id is durable, or lost, unless a rebalance has begun meanwhile."""
        member = replacement.member
        if self.state is not ClassicGroupState.STABLE or member.awaiting_join is not replacement.reply:
            return
        if not durable:
            self.members.rename(member, replacement.former.member_id)
            self.members.update(member, replacement.former)
            result = refused_join(error_codes.COORDINATOR_NOT_AVAILABLE)
        elif replacement.leader_id is None:
            leads = self.members.leader_id == member.member_id
            result = self.joined(member).evolve(skip_assignment=leads)
        else:
            result = self.joined(member).evolve(leader=replacement.leader_id, members=[])
        self.members.answer_join(member, result)
        self._restart_session(member)

    # -- Rebalancing -------------------------------------------------------------------------------------------------

    def _rebalance_or_complete_join(self, reason: str) -> None:
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            self._complete_join_if_ready()
        else:
            self.rebalance(reason)

    def rebalance(self, reason: str) -> None:
        """Make every member join again, or gather the first ones."""
        if self.state is ClassicGroupState.COMPLETING_REBALANCE:
            self._drop_assignment(error_codes.REBALANCE_IN_PROGRESS)
        self.members.pending_sync.clear()
        self._context.timers.cancel(self._sync_timer)
        logger.info("group %r rebalances after generation %d: %s", self.group_id, self.generation_id, reason)
        gathers = self.state is ClassicGroupState.EMPTY
        self._become(ClassicGroupState.PREPARING_REBALANCE)
        if gathers:
            self._join_time.gather(self.members.rebalance_timeout_ms)
        elif self.members.have_all_joined:
            self._complete_join()
        else:
            self._join_time.wait(self.members.rebalance_timeout_ms)

    def _complete_join_if_ready(self) -> None:
        gathers = self._join_time.gathers
        if self.state is ClassicGroupState.PREPARING_REBALANCE and not gathers and self.members.have_all_joined:
            self._complete_join()

    def _complete_join(self) -> None:
        """Begin the next generation with the members that joined, and all static members."""
        self._join_time.end()
        for member in [member for member in self.members if member.awaiting_join is None and not member.is_static]:
            logger.info("member %r of group %r did not rejoin in time", member.member_id, self.group_id)
            self._remove(member)
        if len(self.members) and not self.members.elect_leader():
            # Only silent static members are left; their sessions end one by one.
            self._join_time.wait(self.members.rebalance_timeout_ms)
            return
        self.begin()
        self.members.pending_sync.clear()
        if len(self.members):
            self._begin_generation()
            return
        self._become(ClassicGroupState.EMPTY)
        logger.info("group %r is empty after generation %d", self.group_id, self.generation_id)
        self._submit(self.record(), ignore_outcome)  # if it is lost, its members are back after a restart, and expire

    def _begin_generation(self) -> None:
        self._become(ClassicGroupState.COMPLETING_REBALANCE)
        logger.info(
            "group %r has generation %d: %d members, protocol %r, leader %r",
            *(self.group_id, self.generation_id, len(self.members), self.protocol_name, self.members.leader_id),
        )
        for member in self.members:
            self.members.answer_join(member, self.joined(member))
            self._restart_session(member)
            member.is_new = False
            self.members.pending_sync.add(member.member_id)
        self._context.timers.set_after(self._sync_timer, self.members.rebalance_timeout_ms / 1000)

    # -- Synchronising -----------------------------------------------------------------------------------------------

    def sync(self, sync: Sync) -> OneShot[SyncGroupResponse]:
        """Take the leader's assignment, or return a member's own; answered once the leader's is durable."""
        reply: OneShot[SyncGroupResponse] = OneShot()
        member = self.members.get(sync.identity.member_id)
        if (error_code := self._refuse_sync(sync)) != error_codes.NONE or member is None:
            reply.set(SyncGroupResponse(error_code=error_code))
            return reply
        self.members.pending_sync.discard(member.member_id)
        if not self.members.pending_sync:
            self._context.timers.cancel(self._sync_timer)
        if self.state is ClassicGroupState.STABLE:
            self._restart_session(member)
            reply.set(self.synced(member))
            return reply
        self.members.answer_sync(member, SyncGroupResponse(error_code=error_codes.COORDINATOR_NOT_AVAILABLE))
        member.awaiting_sync = reply
        if member.member_id == self.members.leader_id and (assignments := self.share_out(sync)) is not None:
            self._submit(self.record(assignments), partial(self._assigned, self.generation_id, assignments))
        return reply

    def _refuse_sync(self, sync: Sync) -> int:
        if (error_code := self._check_generation(sync.identity)) != error_codes.NONE:
            return error_code
        if not self.runs(sync.protocol_type, sync.protocol_name):
            return error_codes.INCONSISTENT_GROUP_PROTOCOL
        preparing = self.state is ClassicGroupState.PREPARING_REBALANCE
        return error_codes.REBALANCE_IN_PROGRESS if preparing else error_codes.NONE

    def _assigned(self, generation_id: int, assignments: Mapping[str, bytes], durable: bool) -> None:
        """Answer syncs when the leader's assignment is durable, or lost, unless a rebalance has begun meanwhile."""
        if self.state is not ClassicGroupState.COMPLETING_REBALANCE or self.generation_id != generation_id:
            return
        if not durable:
            self._drop_assignment(error_codes.COORDINATOR_NOT_AVAILABLE)
            self.rebalance("the assignment could not be stored")
            return
        self._become(ClassicGroupState.STABLE)
        for member in self.members:
            self.members.assign(member, assignments.get(member.member_id, b""))
            if self.members.answer_sync(member, self.synced(member)):
                self._restart_session(member)

    def _drop_assignment(self, error_code: int) -> None:
        for member in self.members:
            self.members.assign(member, b"")
            if self.members.answer_sync(member, SyncGroupResponse(error_code=error_code)):
                self._restart_session(member)

    def _sync_time_is_up(self) -> None:
        """Drop members that joined this generation and did not ask for their assignment."""
        silent = [member for member in self.members if member.member_id in self.members.pending_sync]
        for member in silent:
            self._remove(member)
        if silent:
            self.rebalance(f"{len(silent)} members did not ask for their assignment in time")

    # -- Staying and leaving -----------------------------------------------------------------------------------------

    def heartbeat(self, identity: GroupMemberIdentity) -> int:
        """Return the error code; REBALANCE_IN_PROGRESS makes the member join again."""
        if (error_code := self._check_generation(identity)) != error_codes.NONE:
            return error_code
        self.touch(identity.member_id)
        preparing = self.state is ClassicGroupState.PREPARING_REBALANCE
        return error_codes.REBALANCE_IN_PROGRESS if preparing else error_codes.NONE

    def _check_generation(self, identity: GroupMemberIdentity) -> int:
        """Return the error code for a client that claims to be a member of the present generation."""
        if self.state is ClassicGroupState.DEAD:
            return error_codes.COORDINATOR_NOT_AVAILABLE
        error_code = self.members.check(identity.member_id, identity.group_instance_id)
        if error_code == error_codes.NONE and identity.generation_id != self.generation_id:
            return error_codes.ILLEGAL_GENERATION
        return error_code

    def touch(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self._restart_session(member)

    def restart_sessions(self) -> None:
        """Give every member its full session timeout from now on."""
        for member in self.members:
            self._restart_session(member)

    def leave(self, leavers: Sequence[MemberIdentity]) -> list[int]:
        """Remove members; return an error code for each."""
        if self.state is ClassicGroupState.DEAD:
            return [error_codes.COORDINATOR_NOT_AVAILABLE] * len(leavers)
        former_count = len(self.members)
        outcome = [self._leave(leaver) for leaver in leavers]
        left_count = former_count - len(self.members)
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            self._complete_join_if_ready()
        elif left_count:
            self.rebalance(f"{left_count} members left")
        return outcome

    def _leave(self, leaver: MemberIdentity) -> int:
        member_id = leaver.member_id
        if member_id == UNKNOWN_MEMBER_ID:
            member_id = self.members.static_member_id(leaver.group_instance_id) or UNKNOWN_MEMBER_ID
        elif (pending := self.members.take_back(member_id)) is not None:
            self._context.timers.cancel(pending)
            return error_codes.NONE
        error_code = self.members.check(member_id, leaver.group_instance_id)
        member = self.members.get(member_id)
        if error_code == error_codes.NONE and member is not None:
            logger.info("member %r leaves group %r: %s", member_id, self.group_id, leaver.reason or "not provided")
            self._remove(member)
        return error_code

    def _remove(self, member: ClassicMember) -> None:
        """Remove a member; its waiting requests get UNKNOWN_MEMBER_ID, so that it joins again as new."""
        unknown = error_codes.UNKNOWN_MEMBER_ID
        self.members.answer_join(member, refused_join(unknown))
        self.members.answer_sync(member, SyncGroupResponse(error_code=unknown))
        self._context.timers.cancel(member.session)
        self.members.remove(member)

    def _restart_session(self, member: ClassicMember) -> None:
        self._context.timers.set_after(member.session, member.session_timeout_ms / 1000)

    def _session_expired(self, member: ClassicMember) -> None:
        if member.is_excused:
            return  # its session begins anew when it is answered
        logger.info("member %r of group %r has gone silent", member.member_id, self.group_id)
        self._remove(member)
        self._one_fewer("a member has gone silent")

    def abandon_join(self, reply: OneShot[JoinGroupResponse]) -> None:
        """Drop a join whose client has gone, with a new member, as no client knows its id."""
        member = self.members.waiting_for(reply)
        if member is not None and member.is_new:
            logger.info("member %r of group %r went away while it joined", member.member_id, self.group_id)
            self._remove(member)
            self._one_fewer("a member went away while it joined")

    def _pending_expired(self, member_id: str) -> None:
        self.members.take_back(member_id)
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            self._one_fewer("")

    def _one_fewer(self, reason: str) -> None:
        if self.state is not ClassicGroupState.PREPARING_REBALANCE:
            self.rebalance(reason)
        elif self.members.have_all_joined:  # this may cut an initial delay short
            self._complete_join()

    # -- Life and death ----------------------------------------------------------------------------------------------

    def check_commit(self, identity: GroupMemberIdentity, version: int, *, is_transactional: bool = False) -> int:
        """Return the error code of a commit: by a member of this generation, or by any client while the group is empty.

        In a transaction a client that names no member is not checked, as producers before KIP-447 don't, and a member
        may commit while the group completes a rebalance: it has what it read of the generation that it names.
        """
        names_no_member = identity.member_id == UNKNOWN_MEMBER_ID and identity.group_instance_id is None
        may_be_outside = self.is_empty or (is_transactional and names_no_member and not self.is_dead)
        if identity.generation_id < 0 and may_be_outside:
            return error_codes.NONE
        if (error_code := self._check_generation(identity)) != error_codes.NONE:
            return error_code
        completing = self.state is ClassicGroupState.COMPLETING_REBALANCE and not is_transactional
        return error_codes.REBALANCE_IN_PROGRESS if completing else error_codes.NONE

    def check_fetch(self, member_id: str | None, member_epoch: int) -> int:
        """Return NONE: any client may fetch the offsets of a classic group."""
        return error_codes.NONE

    def answer_all(self, error_code: int) -> None:
        """Answer waiting requests with an error after which clients look for the coordinator."""
        for member in self.members:
            self.members.answer_join(member, refused_join(error_code, member.member_id))
            self.members.answer_sync(member, SyncGroupResponse(error_code=error_code))

    def retire(self, error_code: int = error_codes.NOT_COORDINATOR) -> None:
        """Forget the members, as another broker coordinates the group or its protocol has changed."""
        self.answer_all(error_code)
        self._join_time.end()
        self._context.timers.cancel(self._sync_timer)
        for member in list(self.members):
            self._context.timers.cancel(member.session)
            self.members.remove(member)
        self._forget_promises()
        self.state = ClassicGroupState.DEAD

    def die(self) -> Sequence[CoordinatorRecord]:
        """Delete an empty group; return the record that deletes it in the log, for the caller to write."""
        assert self.state is ClassicGroupState.EMPTY
        self._forget_promises()
        self.state = ClassicGroupState.DEAD
        return [group_tombstone(self.group_id)]

    def _forget_promises(self) -> None:
        for member_id, timer in list(self.members.pending_join.items()):
            self._context.timers.cancel(timer)
            self.members.take_back(member_id)

    def revive(self) -> None:
        """Undo a deletion whose record was lost."""
        assert self.state is ClassicGroupState.DEAD
        self.state = ClassicGroupState.EMPTY

    def record(self, assignments: Mapping[str, bytes] | None = None) -> GroupMetadataValue:
        """Return the group's record; `assignments` by member id instead of those in force."""
        return GroupMetadataValue(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type or "",
            protocol_name=self.protocol_name,
            leader_id=self.members.leader_id,
            state_timestamp_ms=self.state_timestamp_ms,
            members=[
                member.record(
                    self.protocol_name or "",
                    member.assignment if assignments is None else assignments[member.member_id],
                )
                for member in self.members
            ],
        )

    def restore(
        self, record: GroupMetadataValue, protocols: Mapping[str, Sequence[ClassicProtocol]] = NO_PROTOCOLS
    ) -> None:
        """Continue a recorded group with full sessions; `protocols` of members replace the recorded one."""
        self.state_timestamp_ms = record.state_timestamp_ms
        self.members.protocol_type = record.protocol_type or None
        for metadata in record.members:
            stored = (
                () if record.protocol_name is None else (ClassicProtocol(record.protocol_name, metadata.subscription),)
            )
            self._restore_member(metadata, tuple(protocols.get(metadata.member_id, stored)), record.protocol_type)
        if record.leader_id is not None and record.leader_id in self.members:
            self.members.leader_id = record.leader_id
        self.generation_id, self.protocol_name = record.generation_id, record.protocol_name
        self._learn_subscription()
        self.state = ClassicGroupState.STABLE if len(self.members) else ClassicGroupState.EMPTY

    def _restore_member(
        self, metadata: MemberMetadata, protocols: tuple[ClassicProtocol, ...], protocol_type: str
    ) -> None:
        if metadata.rebalance_timeout_ms < 0:  # a member of Kafka 0.10.0 and before has none of its own
            metadata = attrs.evolve(metadata, rebalance_timeout_ms=metadata.session_timeout_ms)
        member = ClassicMember.of(
            metadata,
            member_id=metadata.member_id,
            protocols=protocols,
            session=Timer(lambda: self._session_expired(member)),
            assignment=metadata.assignment,
        )
        self.members.add(member, protocol_type)
        self._restart_session(member)

    def _become(self, state: ClassicGroupState) -> None:
        self.state = state
        self.state_timestamp_ms = self._context.wall_clock_ms()

    def _submit(self, record: GroupMetadataValue, then: Then) -> None:
        self._context.submit(self.group_id, [CoordinatorRecord(GroupMetadataKey(self.group_id), record)], then)
