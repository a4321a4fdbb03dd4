"""Members of a classic group, its current generation, and the deadline of its joins.

Members are in the order in which they joined, so choices among them (a new leader, a tied vote) are deterministic.
They have as long to join as the slowest of them may take: its rebalance timeout. The first members of an empty group
are gathered instead (KIP-134): the next generation begins `group.initial.rebalance.delay.ms` after the first one came,
and this long again each time that another one came meanwhile, up to the rebalance timeout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from uuid import uuid4

import attrs

from kafscale.cluster.groups.common.context import (
    CONSUMER_PROTOCOL_TYPE,
    MEMBER_BYTES,
    PENDING_MEMBER_BYTES,
    GroupStateBytes,
    Join,
    Sync,
    protocols_bytes,
)
from kafscale.concurrency.signals import OneShot
from kafscale.concurrency.timers import Timer, TimerQueue
from kafscale.errors import DecodeError
from kafscale.wire import error_codes
from kafscale.wire.codec import decoder
from kafscale.wire.internal_topics.consumer_offsets import ClassicProtocol, MemberMetadata
from kafscale.wire.messages.consumer_groups import ConsumerProtocolSubscription
from kafscale.wire.messages.groups import JoinGroupResponse, JoinGroupResponseMember, SyncGroupResponse

CLIENT_ID_MAX_LENGTH = 255  # of what a member id begins with


@attrs.define(eq=False, kw_only=True, repr=False)
class ClassicMember:
    """One member, and its waiting requests."""

    member_id: str
    group_instance_id: str | None = None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[ClassicProtocol, ...]
    assignment: bytes = b""
    is_new: bool = False  # not in a generation yet: its client can't send heartbeats, so it may expire while it waits
    awaiting_join: OneShot[JoinGroupResponse] | None = None
    awaiting_sync: OneShot[SyncGroupResponse] | None = None
    session: Timer  # the member is dropped when it fires
    counted_bytes: int = 0  # of it in the bound on the state of all groups

    @classmethod
    def of(
        cls,
        terms: Join | MemberMetadata,
        *,
        member_id: str,
        protocols: tuple[ClassicProtocol, ...],
        session: Timer,
        assignment: bytes = b"",
    ) -> ClassicMember:
        return cls(
            member_id=member_id,
            group_instance_id=terms.group_instance_id,
            client_id=terms.client_id,
            client_host=terms.client_host,
            session_timeout_ms=terms.session_timeout_ms,
            rebalance_timeout_ms=terms.rebalance_timeout_ms,
            protocols=protocols,
            assignment=assignment,
            session=session,
        )

    def record(self, protocol_name: str, assignment: bytes) -> MemberMetadata:
        return MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_excused(self) -> bool:
        """Tell whether the member waits for the group, so that it can't send heartbeats."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    @property
    def size_bytes(self) -> int:
        return (
            MEMBER_BYTES
            + len(self.client_id)
            + len(self.group_instance_id or "")
            + len(self.assignment)
            + protocols_bytes(self.protocols)
        )

    def metadata(self, protocol_name: str) -> bytes:
        return next((protocol.metadata for protocol in self.protocols if protocol.name == protocol_name), b"")

    def vote(self, candidates: set[str]) -> str:
        """Return the first of its protocols that is a candidate."""
        return next(protocol.name for protocol in self.protocols if protocol.name in candidates)


@attrs.define(eq=False, repr=False)
class ClassicMembers:
    """The members of one group by id. `pending_join` has ids that clients have yet to come back with."""

    state_bytes: GroupStateBytes = attrs.field(factory=GroupStateBytes)
    protocol_type: str | None = None
    leader_id: str | None = None
    pending_join: dict[str, Timer] = attrs.field(factory=dict, init=False)
    pending_sync: set[str] = attrs.field(factory=set, init=False)  # told of the generation, not heard from since
    _by_id: dict[str, ClassicMember] = attrs.field(factory=dict, init=False)
    _static: dict[str, str] = attrs.field(factory=dict, init=False)  # instance id -> member id
    _supporters: Counter[str] = attrs.field(factory=Counter, init=False)  # protocol name -> how many know it
    _awaiting_join: dict[OneShot[JoinGroupResponse], ClassicMember] = attrs.field(factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(self._by_id.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> ClassicMember | None:
        return self._by_id.get(member_id)

    def static_member_id(self, group_instance_id: str | None) -> str | None:
        return self._static.get(group_instance_id) if group_instance_id is not None else None

    def check(self, member_id: str, group_instance_id: str | None) -> int:
        """Return the error code for a client that claims to be this member (KIP-345)."""
        if group_instance_id is not None:
            current = self._static.get(group_instance_id)
            if current is None:
                return error_codes.UNKNOWN_MEMBER_ID
            if current != member_id:
                return error_codes.FENCED_INSTANCE_ID
        return error_codes.NONE if member_id in self._by_id else error_codes.UNKNOWN_MEMBER_ID

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        """Add a member; the first one decides the protocol type, and leads."""
        if not self._by_id:
            self.protocol_type = protocol_type
        assert member.member_id not in self._by_id
        assert member.awaiting_join is None
        assert protocol_type == self.protocol_type
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self._static
            self._static[member.group_instance_id] = member.member_id
        self._by_id[member.member_id] = member
        self._count(member)
        self._supporters.update(_names(member.protocols))
        self.take_back(member.member_id)
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member: ClassicMember) -> None:
        """Remove a member without waiting requests; if it led, the longest-standing member leads."""
        assert member.awaiting_join is None
        assert member.awaiting_sync is None
        del self._by_id[member.member_id]
        self.state_bytes.change(-member.counted_bytes)
        self._supporters.subtract(_names(member.protocols))
        self._supporters = +self._supporters
        if member.group_instance_id is not None:
            del self._static[member.group_instance_id]
        self.pending_sync.discard(member.member_id)
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self._by_id), None)

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """Give a static member another id; it keeps its place and its role."""
        assert member.group_instance_id is not None
        old_id, member.member_id = member.member_id, member_id
        self._by_id = {other.member_id: other for other in self._by_id.values()}
        self._static[member.group_instance_id] = member_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(member_id)
        if self.leader_id == old_id:
            self.leader_id = member_id

    def update(self, member: ClassicMember, terms: Join | ClassicMember) -> None:
        """Take over a member's new protocols, timeouts and client."""
        self._supporters.subtract(_names(member.protocols))
        self._supporters.update(_names(terms.protocols))
        self._supporters = +self._supporters
        member.protocols = terms.protocols
        member.session_timeout_ms = terms.session_timeout_ms
        member.rebalance_timeout_ms = terms.rebalance_timeout_ms
        member.client_id = terms.client_id
        member.client_host = terms.client_host
        self._count(member)

    def assign(self, member: ClassicMember, assignment: bytes) -> None:
        member.assignment = assignment
        self._count(member)

    def _count(self, member: ClassicMember) -> None:
        size_bytes = member.size_bytes
        self.state_bytes.change(size_bytes - member.counted_bytes)
        member.counted_bytes = size_bytes

    def promise(self, member_id: str, timer: Timer) -> None:
        """Reserve an id that a client was given; the timer ends that."""
        self.pending_join[member_id] = timer
        self.state_bytes.change(PENDING_MEMBER_BYTES)

    def take_back(self, member_id: str) -> Timer | None:
        """Release a reserved id, and return its timer."""
        timer = self.pending_join.pop(member_id, None)
        if timer is not None:
            self.state_bytes.change(-PENDING_MEMBER_BYTES)
        return timer

    def await_join(self, member: ClassicMember, reply: OneShot[JoinGroupResponse]) -> None:
        assert member.awaiting_join is None
        member.awaiting_join = reply
        self._awaiting_join[reply] = member

    def answer_join(self, member: ClassicMember, result: JoinGroupResponse) -> None:
        """Answer a member's join, if one waits."""
        if member.awaiting_join is not None:
            reply, member.awaiting_join = member.awaiting_join, None
            del self._awaiting_join[reply]
            reply.set(result)

    def answer_sync(self, member: ClassicMember, result: SyncGroupResponse) -> bool:
        """Answer a member's sync, and tell whether one waited."""
        if member.awaiting_sync is None:
            return False
        reply, member.awaiting_sync = member.awaiting_sync, None
        reply.set(result)
        return True

    def waiting_for(self, reply: OneShot[JoinGroupResponse]) -> ClassicMember | None:
        return self._awaiting_join.get(reply)

    @property
    def awaiting_join_count(self) -> int:
        return len(self._awaiting_join)

    @property
    def have_all_joined(self) -> bool:
        return self.awaiting_join_count == len(self._by_id) and not self.pending_join

    def shares_protocol(self, protocols: Iterable[ClassicProtocol]) -> bool:
        """Tell whether all members know one of these protocols."""
        return any(self._supporters[protocol.name] == len(self._by_id) for protocol in protocols)

    def select_protocol(self) -> str:
        """Return the protocol with the most votes among those that all members know."""
        candidates = {name for name, count in self._supporters.items() if count == len(self._by_id)}
        return Counter(member.vote(candidates) for member in self).most_common(1)[0][0]

    def elect_leader(self) -> bool:
        """Elect a leader among the members that have joined; return False if none has."""
        if self.leader_id is None:
            return False
        if self._by_id[self.leader_id].awaiting_join is None:
            joined = (member.member_id for member in self if member.awaiting_join is not None)
            successor = next(joined, None)
            if successor is None:
                return False
            self.leader_id = successor
        return True

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self), default=0)


def new_member_id(join: Join) -> str:
    """Return a new id, which begins with the client's."""
    return f"{(join.group_instance_id or join.client_id)[:CLIENT_ID_MAX_LENGTH]}-{uuid4()}"


def _names(protocols: Iterable[ClassicProtocol]) -> set[str]:
    return {protocol.name for protocol in protocols}


VERSION_BYTES = 2  # an int16 in front; every version begins with the fields of version 0


def subscribed_topics(metadata_of_members: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of members of the protocol type "consumer"; None if a member's metadata is unreadable."""
    decode = decoder(ConsumerProtocolSubscription, 0)
    topics: set[str] = set()
    for metadata in metadata_of_members:
        try:
            subscription, _ = decode(memoryview(metadata), VERSION_BYTES)
        except DecodeError:
            return None
        topics.update(subscription.topics)
    return frozenset(topics)


@attrs.define(eq=False, kw_only=True, repr=False)
class JoinTime:
    """The deadline of one group's joins, set while a rebalance waits; `is_up` is called once it has passed."""

    initial_delay_ms: int
    timers: TimerQueue
    is_up: Callable[[], None]
    _timer: Timer = attrs.field(init=False)
    _delay_left_ms: int | None = attrs.field(default=None, init=False)  # set while an empty group fills up
    _newcomers: bool = attrs.field(default=False, init=False)  # someone came during the present initial delay

    def __attrs_post_init__(self) -> None:
        self._timer = Timer(self._passed)

    @property
    def is_set(self) -> bool:
        return self._timer.is_set

    @property
    def gathers(self) -> bool:
        """Tell whether the first members are being gathered, until the initial delay is over."""
        return self._delay_left_ms is not None

    def gather(self, rebalance_timeout_ms: int) -> None:
        self._newcomers = False
        self._delay_left_ms = max(rebalance_timeout_ms - self.initial_delay_ms, 0)
        self.wait(self.initial_delay_ms)

    def newcomer(self) -> None:
        """Note that a member joins for the first time."""
        if self.gathers:
            self._newcomers = True

    def wait(self, timeout_ms: int) -> None:
        """Wait for all members, this long at most."""
        self.timers.set_after(self._timer, timeout_ms / 1000)

    def end(self) -> None:
        self.timers.cancel(self._timer)
        self._delay_left_ms = None

    def _passed(self) -> None:
        left_ms = self._delay_left_ms
        if left_ms and self._newcomers:
            delay_ms = min(self.initial_delay_ms, left_ms)
            self._newcomers = False
            self._delay_left_ms = left_ms - delay_ms
            self.wait(delay_ms)
        else:
            self.is_up()


@attrs.define(eq=False, repr=False)
class Generation:
    """The generation of the members, or the last one of a group without members."""

    members: ClassicMembers = attrs.field(factory=ClassicMembers)
    generation_id: int = attrs.field(default=0, init=False)
    protocol_name: str | None = attrs.field(default=None, init=False)
    subscribed_topics: frozenset[str] | None = attrs.field(default=None, init=False)  # None: not known
    _shared_out_id: int | None = attrs.field(default=None, init=False)  # whose assignment the leader has given

    def begin(self) -> None:
        """Begin the next generation with the present members."""
        self.generation_id += 1
        self.protocol_name = self.members.select_protocol() if len(self.members) else None
        self._learn_subscription()

    def share_out(self, sync: Sync) -> dict[str, bytes] | None:
        """Return the leader's assignment by member id; None if there was one in this generation."""
        if self._shared_out_id == self.generation_id:
            return None
        self._shared_out_id = self.generation_id
        return {member.member_id: sync.assignments.get(member.member_id, b"") for member in self.members}

    def runs(self, protocol_type: str | None, protocol_name: str | None) -> bool:
        """Tell whether these are its protocol; None, and the name in a generation without one, is not compared."""
        if protocol_type not in (None, self.members.protocol_type):
            return False
        return self.protocol_name is None or protocol_name in (None, self.protocol_name)

    def joined(self, member: ClassicMember) -> JoinGroupResponse:
        """Return the answer to a member that has joined; only the leader's has the members."""
        leads = member.member_id == self.members.leader_id
        return JoinGroupResponse(
            member_id=member.member_id,
            generation_id=self.generation_id,
            protocol_type=self.members.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.members.leader_id or "",
            members=[
                JoinGroupResponseMember(
                    member_id=other.member_id,
                    group_instance_id=other.group_instance_id,
                    metadata=other.metadata(self.protocol_name or ""),
                )
                for other in (self.members if leads else ())
            ],
        )

    def synced(self, member: ClassicMember) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.members.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )

    def is_subscribed_to(self, topic: str) -> bool:
        """Tell whether a member reads this topic; True if the topics of a consumer group are not known."""
        if self.subscribed_topics is None:
            return self.members.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.subscribed_topics

    def _learn_subscription(self) -> None:
        self.subscribed_topics = None
        if self.members.protocol_type == CONSUMER_PROTOCOL_TYPE:
            name = self.protocol_name or ""
            self.subscribed_topics = subscribed_topics(member.metadata(name) for member in self.members)
