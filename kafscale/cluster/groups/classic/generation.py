"""The current generation of a classic group, the deadline of its joins, and the topics that its members subscribe to.

Members have as long to join as the slowest of them may take: its rebalance timeout. The first members of an empty group
are gathered instead (KIP-134): the next generation begins `group.initial.rebalance.delay.ms` after the first one came,
and this long again each time that another one came meanwhile, up to the rebalance timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from kafscale.cluster.groups.classic.members import ClassicMember, ClassicMembers
from kafscale.cluster.groups.common.events import CONSUMER_PROTOCOL_TYPE, Sync
from kafscale.concurrency.timers import Timer, TimerQueue
from kafscale.errors import DecodeError
from kafscale.wire.codec import decoder
from kafscale.wire.messages.consumer_groups import ConsumerProtocolSubscription
from kafscale.wire.messages.groups import JoinGroupResponse, JoinGroupResponseMember, SyncGroupResponse

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
