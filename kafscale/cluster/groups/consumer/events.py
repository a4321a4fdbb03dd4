"""Events, records and outcomes of a consumer group's state machine: values only.

Events of the classic protocol are those of classic groups (`kafscale.cluster.groups.common.events`). Records have the
classes of `kafscale.wire.internal_topics.consumer_offsets`.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

import attrs

from kafscale.cluster.groups.assignors.spec import Partitions
from kafscale.cluster.groups.common.events import GroupRecord
from kafscale.wire import error_codes
from kafscale.wire.internal_topics.consumer_offsets import ConsumerGroupKey, ConsumerGroupValue, TopicPartitions


@attrs.frozen
class CoordinatorRecord:
    """A key with its value; None deletes the value."""

    key: ConsumerGroupKey
    value: ConsumerGroupValue | None


def as_topic_partitions(partitions: Partitions) -> list[TopicPartitions]:
    """Return partitions in the form of records, always in the same order for the same partitions."""
    return [TopicPartitions(topic_id, sorted(partitions[topic_id])) for topic_id in sorted(partitions)]


def from_topic_partitions(topic_partitions: Iterable[TopicPartitions]) -> Partitions:
    """Return the partitions of a record."""
    return {topic.topic_id: frozenset(topic.partitions) for topic in topic_partitions if topic.partitions}


Reply = TypeVar("Reply")

NO_TIMEOUT_MS = -1  # of a field that a heartbeat leaves out


@attrs.frozen(kw_only=True)
class Heartbeat:
    """A ConsumerGroupHeartbeat request. None, and -1 for the timeout, is what has not changed since the last one.

    `viewer` is the sender, as `Rights` know it.
    """

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = NO_TIMEOUT_MS
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    client_id: str
    client_host: str
    viewer: Hashable = None
    chooses_member_id: bool = True  # the client makes its own id (version 1)

    @property
    def is_full(self) -> bool:
        """Tell whether it has every field, as from a client that is not sure what the broker knows."""
        has_topics = self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None
        return self.rebalance_timeout_ms != NO_TIMEOUT_MS and has_topics and self.owned is not None


@attrs.frozen(kw_only=True)
class HeartbeatReply:
    """The answer to a heartbeat; `assignment` is None where it has not changed."""

    error_code: int = error_codes.NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


class TimerKind(enum.Enum):
    """The reason for a member's deadline."""

    SESSION = "session"  # to send its next heartbeat
    REBALANCE = "rebalance"  # to give up partitions
    JOIN = "join"  # of the classic protocol: to join again
    SYNC = "sync"  # of the classic protocol: to ask for its assignment


@attrs.frozen
class TimerKey:
    """One deadline of one member."""

    kind: TimerKind
    member_id: str


@attrs.frozen
class TimerChange:
    """The new time of a deadline, in the milliseconds of `now_ms`; None removes it."""

    key: TimerKey
    deadline_ms: int | None


@attrs.frozen(kw_only=True)
class RegexRefresh:
    """Ask to look for expressions in all topics, by `regexes.Search`, and to tell the group what was found.

    `viewers` are the clients that subscribe by each expression; it finds topics that all of them may describe. They
    are empty without an authorizer.
    """

    viewers: Mapping[str, frozenset[Hashable]]
    asker: Hashable  # the client whose heartbeat asks
    version: int  # of the topics that are searched
    rights_version: int = 0


@attrs.frozen(kw_only=True)
class Downgrade:
    """The group is a classic one from now on; its members rebalance at once if `rebalances`."""

    group: GroupRecord
    rebalances: bool
    reason: str


@attrs.frozen(kw_only=True)
class GroupOutcome(Generic[Reply]):
    """The outcome of an event.

    The group has changed already. `records` go to the log in this order, together if the log can; the reply is sent
    once they are durable. If they can't be written, the group must be loaded again from the log.
    """

    reply: Reply
    records: tuple[CoordinatorRecord, ...] = ()
    timers: tuple[TimerChange, ...] = ()
    refresh: RegexRefresh | None = None
    downgrade: Downgrade | None = None


class EventRefused(Exception):
    """An event is not accepted; nothing has changed."""

    def __init__(self, error_code: int, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message = message
