"""A consumer group of Kafka 4 with its log, topics and clock, and clients of it: for tests without a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from kafscale.cluster.groups.classic.group import ClassicGroup
from kafscale.cluster.groups.common.assignors import Partitions
from kafscale.cluster.groups.common.context import (
    Downgrade,
    GroupContext,
    GroupOverrides,
    GroupStateBytes,
    Heartbeat,
    HeartbeatReply,
    Join,
    RegexRefresh,
    Rights,
    TimerKey,
)
from kafscale.cluster.groups.common.log_records import CoordinatorRecord
from kafscale.cluster.groups.common.topics import KnownTopic, KnownTopics
from kafscale.cluster.groups.consumer.group import ConsumerGroup
from kafscale.cluster.groups.consumer.regexes import Search
from kafscale.concurrency.signals import OneShot
from kafscale.concurrency.timers import TimerQueue
from kafscale.config import Settings
from kafscale.wire import error_codes
from kafscale.wire.codec import encode
from kafscale.wire.internal_topics.consumer_offsets import ClassicProtocol, GroupMetadataKey, GroupMetadataValue
from kafscale.wire.messages.consumer_groups import ConsumerProtocolSubscription, ConsumerTopicPartitions

R = TypeVar("R")

START_MS = 1_700_000_000_000
GROUP_ID = "group"
ROUNDING_SECONDS = 1e-6


def topic_id(name: str) -> bytes:
    """The id of a topic in these tests; of topics that are created again it is another one."""
    return name.encode().rjust(16, b"\0")


def partitions(**of_topic: set[int] | range) -> dict[bytes, frozenset[int]]:
    """Partitions by the names of their topics."""
    return {topic_id(name): frozenset(numbers) for name, numbers in of_topic.items() if numbers}


def named(assigned: Partitions) -> dict[str, set[int]]:
    """The reverse of `partitions`."""
    return {each.lstrip(b"\0").decode(): set(numbers) for each, numbers in assigned.items()}


def subscription(*names: str, owned: Mapping[str, set[int]] | None = None, rack_id: str | None = None) -> bytes:
    """Encode a subscription of the classic protocol, in version 3."""
    told = ConsumerProtocolSubscription(
        topics=list(names),
        owned_partitions=[
            ConsumerTopicPartitions(topic=name, partitions=sorted(numbers)) for name, numbers in (owned or {}).items()
        ],
        rack_id=rack_id,
    )
    return (3).to_bytes(2) + b"".join(encode(told, 3))


@attrs.define(eq=False)
class Outcome:
    """The outcome of the last event: what it wrote, and what it asked for."""

    records: list[CoordinatorRecord] = attrs.field(factory=list)
    refresh: RegexRefresh | None = None
    downgrade: Downgrade | None = None


@attrs.define(eq=False, kw_only=True)
class ConsumerGroupHarness:
    """One group. What it writes of itself is durable at once, in `log`; its timers fire as `advance` comes to them.

    `classic` is the group as long as it is a classic one.
    """

    settings: Settings = attrs.field(factory=Settings)
    rights: Rights | None = None
    state_bytes: GroupStateBytes = attrs.field(factory=GroupStateBytes)
    seconds: float = attrs.field(default=0.0, init=False)
    overrides: dict[str, GroupOverrides] = attrs.field(factory=dict, init=False)
    timers: TimerQueue = attrs.field(init=False)
    context: GroupContext = attrs.field(init=False)
    group: ConsumerGroup = attrs.field(init=False)
    log: list[CoordinatorRecord] = attrs.field(factory=list, init=False)
    last: Outcome = attrs.field(factory=Outcome, init=False)
    classic: ClassicGroup | None = attrs.field(default=None, init=False)
    refresh: RegexRefresh | None = attrs.field(default=None, init=False)  # what is to be looked for
    _member_number: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.timers = TimerQueue(lambda: self.seconds)
        self.context = GroupContext(
            settings=self.settings,
            overrides=self.overrides,
            topics=KnownTopics(),
            state_bytes=self.state_bytes,
            timers=self.timers,
            wall_clock_ms=lambda: self.now_ms,
            submit=self._submit,
            search=self._search,
            downgrade=self._downgrade,
            rights=self.rights,
            new_member_id=self._new_member_id,
        )
        self.group = ConsumerGroup(GROUP_ID, self.context)

    def _new_member_id(self) -> str:
        self._member_number += 1
        return f"made-{self._member_number}"

    def _submit(
        self, group_id: str, records: Sequence[CoordinatorRecord], then: Callable[[bool], None], **_more: Any
    ) -> None:
        self.last.records = [*records]
        self.log += [record for record in records if not isinstance(record.key, GroupMetadataKey)]
        then(True)

    def _search(self, group: ConsumerGroup, refresh: RegexRefresh) -> None:
        self.last.refresh = self.refresh = refresh

    def _downgrade(self, group_id: str, downgrade: Downgrade) -> None:
        self.last.downgrade = downgrade
        self.group.retire()
        self.classic = self.made_classic(downgrade.group, downgrade.protocols)

    def made_classic(
        self, record: GroupMetadataValue, protocols: Mapping[str, Sequence[ClassicProtocol]] | None = None
    ) -> ClassicGroup:
        """Return a classic group that counts, and times, apart from this one."""
        context = attrs.evolve(self.context, state_bytes=GroupStateBytes(), timers=TimerQueue(lambda: 0.0))
        classic = ClassicGroup(GROUP_ID, context)
        classic.restore(record, protocols or {})
        return classic

    @property
    def now_ms(self) -> int:
        return START_MS + round(self.seconds * 1000)

    @property
    def deadlines(self) -> set[TimerKey]:
        """The deadlines that are set."""
        return {key for key, deadline in self.group._soft.deadlines.items() if deadline.timer.is_set}

    def put_topics(self, **partition_counts: int) -> None:
        """Create topics, or change their number of partitions."""
        put = [
            KnownTopic(topic_id=topic_id(name), name=name, partition_count=count)
            for name, count in partition_counts.items()
        ]
        self.context.topics.change(version=self.context.topics.version + 1, put=put)

    def remove_topics(self, *names: str) -> None:
        self.context.topics.change(version=self.context.topics.version + 1, removed=names)

    def took(self, reply: OneShot[R]) -> R:
        """Return a reply, which is there at once."""
        assert reply.value is not None
        return reply.value

    def heartbeat(self, request: Heartbeat) -> HeartbeatReply:
        self.last = Outcome()
        if self.classic is not None and request.member_epoch == 0:
            begun, reply = ConsumerGroup.begin(GROUP_ID, self.classic, request, self.context)
            if begun is not None:
                self.group, self.classic, self.refresh = begun, None, None
            return self.took(reply)
        if not self.group.state.exists and request.member_epoch != 0:
            return HeartbeatReply(error_code=error_codes.GROUP_ID_NOT_FOUND)
        return self.took(self.group.consumer_heartbeat(request))

    def find_topics(self) -> None:
        """Look for the topics that a group wants to have looked for."""
        if self.refresh is None:
            return
        refresh, self.refresh = self.refresh, None
        search = Search(refresh, sorted(self.context.topics.by_name))
        if self.context.rights is not None:
            search.may_describe = self.context.rights.may_describe
        for piece in search.pieces():
            piece.run()
            search.learn(piece)
        self.group.regexes_found(search.found, refresh.version)

    def advance(self, by_ms: int) -> None:
        """Let time pass, and fire what is due on the way."""
        end = self.seconds + by_ms / 1000
        while self.timers.next_deadline <= end + ROUNDING_SECONDS:
            self.seconds = max(self.seconds, self.timers.next_deadline)
            self.timers.fire_due()
        self.seconds = max(self.seconds, end)

    def restart(self, log_count: int | None = None) -> None:
        """Make the group anew from its log, or the beginning of it."""
        del self.log[len(self.log) if log_count is None else log_count :]
        self.group.retire()
        self.refresh = None
        self.group = ConsumerGroup.restored(GROUP_ID, self.log, self.context)


@attrs.define(eq=False, kw_only=True)
class ConsumerClient:
    """A client of the consumer protocol: it says what has changed, and gives partitions up when it is told to."""

    harness: ConsumerGroupHarness
    member_id: str
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    instance_id: str | None = None
    server_assignor: str | None = None
    rebalance_timeout_ms: int = 60_000
    viewer: str | None = None
    epoch: int = attrs.field(default=0, init=False)
    owned: Partitions = attrs.field(factory=dict, init=False)

    def request(self, *, is_full: bool = True, **changed: Any) -> Heartbeat:
        request = Heartbeat(
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=self.rebalance_timeout_ms if is_full else -1,
            subscribed_topic_names=self.topics if is_full else None,
            subscribed_topic_regex=self.regex if is_full else None,
            server_assignor=self.server_assignor if is_full else None,
            owned={} if self.epoch == 0 else self.owned,
            client_id="client",
            client_host="/127.0.0.1",
            viewer=self.viewer,
        )
        return attrs.evolve(request, **changed)

    def beat(self, *, is_full: bool = True, **changed: Any) -> HeartbeatReply:
        """Send a heartbeat and do what the reply says; what is revoked is reported with the next one."""
        reply = self.harness.heartbeat(self.request(is_full=is_full, **changed))
        if reply.error_code == error_codes.NONE:
            self.epoch = reply.member_epoch
            self.owned = self.owned if reply.assignment is None else reply.assignment
        elif reply.error_code in (error_codes.FENCED_MEMBER_EPOCH, error_codes.UNKNOWN_MEMBER_ID):
            self.epoch, self.owned = 0, {}
        return reply

    def leave(self, epoch: int = -1) -> HeartbeatReply:
        reply = self.beat(is_full=False, member_epoch=epoch)
        self.epoch, self.owned = 0, {}
        return reply


def settle(*clients: ConsumerClient, rounds: int = 10) -> None:
    """Let clients send heartbeats until nothing changes any more."""
    for _ in range(rounds):
        before = [(client.epoch, client.owned) for client in clients]
        for client in clients:
            client.beat(is_full=False)
        if before == [(client.epoch, client.owned) for client in clients]:
            return
    raise AssertionError(f"no end in {rounds} rounds")


def joins(
    member_id: str = "",
    *topics: str,
    instance_id: str | None = None,
    owned: Mapping[str, set[int]] | None = None,
    protocols: tuple[str, ...] = ("range",),
    member_id_required: bool = False,
) -> Join:
    """A JoinGroup of a consumer of the classic protocol."""
    return Join(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id="client",
        client_host="/127.0.0.1",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=tuple(ClassicProtocol(name, subscription(*topics, owned=owned)) for name in protocols),
        member_id_required=member_id_required,
    )
