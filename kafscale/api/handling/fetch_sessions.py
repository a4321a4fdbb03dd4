"""Incremental fetch sessions (KIP-227): the broker remembers the partitions of a consumer and its last answers.

A consumer of many partitions then sends and gets only changes. Without room for a session (more than 1,000, or too many
partitions in all or of one principal, and none idle for long enough) the consumer goes on with full fetches.

A session must not contain a partition that does not exist or that its client may not read: every request of 45 bytes
would be answered with the same error. A fetch of such a partition ends its session, by a response with session 0.
"""

from __future__ import annotations

import math
import random
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator
from weakref import WeakKeyDictionary

import attrs
import trio

from kafscale.api.handling.calls import Peer
from kafscale.concurrency.turns import STEPS_PER_TURN, in_turns
from kafscale.errors import KafkaError
from kafscale.formats.manifest import PartitionId
from kafscale.security.principals import ANONYMOUS, Principal
from kafscale.wire.error_codes import (
    FETCH_SESSION_ID_NOT_FOUND,
    FETCH_SESSION_TOPIC_ID_ERROR,
    INVALID_FETCH_SESSION_EPOCH,
)
from kafscale.wire.messages.records import FetchPartition, FetchRequest, PartitionData

NO_SESSION = 0
NO_REPLICA = -1
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EVICTABLE_AFTER_SECONDS = 120.0  # as Kafka: a session idle for this long makes room for a new one
MAX_EPOCH = 2**31 - 1
PARTITIONS_MAX_COUNT = 500_000  # of all sessions, some 400 bytes each; Kafka has no limit
OF_PRINCIPAL_MAX_COUNT = PARTITIONS_MAX_COUNT // 2  # of all sessions of one principal


@attrs.frozen(cache_hash=True)  # in the key of each partition
class TopicName:
    """A topic as a request names it: by name up to version 12, else by id; the other one is empty."""

    name: str
    topic_id: bytes


@attrs.define(eq=False, repr=False)
class FetchedPartition:
    """One partition of a fetch, and in a session its last answer."""

    topic: TopicName
    wanted: FetchPartition
    told_high_watermark: int = -1
    told_log_start_offset: int = -1

    def is_news(self, data: PartitionData) -> bool:
        """Tell whether an incremental response must contain this answer."""
        return bool(
            data.error_code
            or data.records
            or data.preferred_read_replica != NO_REPLICA
            or data.high_watermark != self.told_high_watermark
            or data.log_start_offset != self.told_log_start_offset
        )

    def told(self, data: PartitionData) -> None:
        # After an error the consumer must get this partition again, whatever its offsets are.
        self.told_high_watermark = -1 if data.error_code else data.high_watermark
        self.told_log_start_offset = -1 if data.error_code else data.log_start_offset


PartitionKey = tuple[TopicName, int]


@attrs.define(eq=False, repr=False)
class FetchSession:
    """The partitions of one consumer, in the order in which they are served."""

    session_id: int
    uses_topic_ids: bool
    owner: Principal
    epoch: int
    last_used: float
    partitions: OrderedDict[PartitionKey, FetchedPartition] = attrs.field(factory=OrderedDict)

    def update(self, request: FetchRequest, asked: Iterable[FetchedPartition]) -> None:
        for fetched in asked:
            known = self.partitions.setdefault((fetched.topic, fetched.wanted.partition), fetched)
            known.wanted = fetched.wanted
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                self.partitions.pop((TopicName(topic.topic, topic.topic_id), partition), None)

    def served_first(self, fetched: FetchedPartition) -> None:
        """Move a partition that returned records behind the others."""
        key = fetched.topic, fetched.wanted.partition
        if key in self.partitions:  # otherwise another connection's request has removed it
            self.partitions.move_to_end(key)


@attrs.frozen(eq=False, repr=False)
class FetchContext:
    """The partitions of one Fetch. The answer to an `incremental` one omits unchanged partitions."""

    partitions: Collection[FetchedPartition]
    session: FetchSession | None
    incremental: bool

    @property
    def session_id(self) -> int:
        return NO_SESSION if self.session is None else self.session.session_id


def requested(request: FetchRequest) -> Iterator[FetchedPartition]:
    for topic in request.topics:
        name = TopicName(topic.topic, topic.topic_id)
        for partition in topic.partitions:
            yield FetchedPartition(name, partition)


def distinct(request: FetchRequest) -> Collection[FetchedPartition]:
    """Return the partitions that a request lists, each once. The last entry of a partition counts, as in Kafka."""
    if len(request.topics) == 1 and len(request.topics[0].partitions) == 1:
        return list(requested(request))
    return {(fetched.topic, fetched.wanted.partition): fetched for fetched in requested(request)}.values()


async def distinct_in_turns(request: FetchRequest) -> Collection[FetchedPartition]:
    """Do the same; other tasks run in between if there are many partitions."""
    if sum(len(topic.partitions) for topic in request.topics) <= STEPS_PER_TURN:
        return distinct(request)
    found: dict[PartitionKey, FetchedPartition] = {}
    async for fetched in in_turns(requested(request)):
        found[fetched.topic, fetched.wanted.partition] = fetched
    return found.values()


@attrs.define(eq=False, repr=False)
class FetchSessions:
    """All sessions of this broker, the least recently used first."""

    max_count: int
    sessions: OrderedDict[int, FetchSession] = attrs.field(factory=OrderedDict, init=False)
    partitions_count: int = attrs.field(default=0, init=False)  # of all of them
    evicted_count: int = attrs.field(default=0, init=False)
    _of_principal: Counter[Principal] = attrs.field(factory=Counter, init=False)  # partitions

    def resolve(
        self,
        request: FetchRequest,
        asked: Collection[FetchedPartition],
        *,
        uses_topic_ids: bool,
        principal: Principal = ANONYMOUS,
    ) -> FetchContext:
        """Return the partitions of a request, which lists those in `asked`.

        Raises KafkaError for an unknown session, a wrong epoch, or a mix of topic names and ids, as after a change of
        versions: the client then begins a new session (KIP-516).
        """
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._close(request.session_id)
            session = None
            if request.session_epoch == INITIAL_EPOCH:
                session = self._open(asked, uses_topic_ids, principal)
            if session is None:
                return FetchContext(asked, None, incremental=False)
            self._update(session, request, asked)
            return FetchContext(list(session.partitions.values()), session, incremental=False)
        session = self.sessions.get(request.session_id)
        if session is None:
            raise KafkaError(FETCH_SESSION_ID_NOT_FOUND)
        if request.session_epoch != session.epoch:
            raise KafkaError(INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if session.epoch == MAX_EPOCH else session.epoch + 1
        session.last_used = trio.current_time()
        self.sessions.move_to_end(session.session_id)
        self._update(session, request, asked)
        if self._lacks_room(session.owner):
            self._close(session.session_id)
            raise KafkaError(FETCH_SESSION_ID_NOT_FOUND)
        return FetchContext(list(session.partitions.values()), session, incremental=True)

    def end(self, session: FetchSession) -> None:
        """Forget a session with an unknown or refused partition; its client begins anew."""
        if self.sessions.get(session.session_id) is session:
            self._close(session.session_id)

    def _lacks_room(self, principal: Principal, more: int = 0) -> bool:
        of_principal = self._of_principal[principal]
        return self.partitions_count + more > PARTITIONS_MAX_COUNT or of_principal + more > OF_PRINCIPAL_MAX_COUNT

    def _open(
        self, asked: Collection[FetchedPartition], uses_topic_ids: bool, principal: Principal
    ) -> FetchSession | None:
        now, more = trio.current_time(), len(asked)
        while len(self.sessions) >= self.max_count or self._lacks_room(principal, more):
            is_own = self._of_principal[principal] + more > OF_PRINCIPAL_MAX_COUNT
            candidates = (session for session in self.sessions.values() if not is_own or session.owner == principal)
            oldest = next(candidates, None)
            if oldest is None or now - oldest.last_used < EVICTABLE_AFTER_SECONDS:
                return None
            self._close(oldest.session_id)
            self.evicted_count += 1
        session_id = random.randrange(1, MAX_EPOCH)
        while session_id in self.sessions:
            session_id = random.randrange(1, MAX_EPOCH)
        session = FetchSession(session_id, uses_topic_ids, principal, 1, now)
        self.sessions[session_id] = session
        return session

    def _update(self, session: FetchSession, request: FetchRequest, asked: Iterable[FetchedPartition]) -> None:
        before_count = len(session.partitions)
        session.update(request, asked)
        self._count(session.owner, len(session.partitions) - before_count)

    def _close(self, session_id: int) -> None:
        session = self.sessions.pop(session_id, None)
        if session is not None:
            self._count(session.owner, -len(session.partitions))

    def _count(self, owner: Principal, by_count: int) -> None:
        self.partitions_count += by_count
        self._of_principal[owner] += by_count
        if not self._of_principal[owner]:
            del self._of_principal[owner]


BACK_SECONDS = 30.0  # a consumer that returns so soon was not served there; otherwise it returns after five minutes
STAY_SECONDS = 300.0


@attrs.define(eq=False, repr=False)
class _Referral:
    sent_at: float = -math.inf
    stays_until: float = -math.inf


@attrs.define(eq=False, repr=False)
class Referrals:
    """Consumers sent to another broker in their rack. One that returns at once is served here for STAY_SECONDS."""

    _told: WeakKeyDictionary[Peer, dict[PartitionId, _Referral]] = attrs.field(factory=WeakKeyDictionary, init=False)

    def may_send(self, peer: Peer, partition_id: PartitionId) -> bool:
        """Tell whether to send a consumer to another broker, and remember that it was sent."""
        now = trio.current_time()
        referral = self._told.setdefault(peer, {}).setdefault(partition_id, _Referral())
        if now < referral.stays_until:
            return False
        if now < referral.sent_at + BACK_SECONDS:
            referral.stays_until = now + STAY_SECONDS
            return False
        referral.sent_at = now
        return True
