"""Fetch (key 1), versions 4 to 18.

     7  fetch sessions (KIP-227)                   12  flexible encoding
     9  the consumer's leader epoch is checked     13  topics by id (KIP-516)
    11  the rack of the consumer (KIP-392)         15  the replica's state (only consumers are served)
                                                   16  where other leaders are (KIP-951)
                                                   17, 18  what replicas of Kafka's metadata tell (ignored)

With `read_committed` a fetch ends at the last stable offset, and names the aborted transactions in its records.

A consumer with a rack is told a broker in that rack to read from, unless the leader is there. In `s3-wal` all
acknowledged records are in the bucket, which any broker reads. Otherwise the consumer goes there if it wants at least
NEARBY_LEAST_BYTES that are in the bucket; at their end NOT_LEADER_OR_FOLLOWER sends it to the leader. A consumer that
returns at once is not sent away again for a while (`kafscale.api.handling.fetch_sessions`).

A fetch waits until `min_bytes` can be read, `max_wait_ms` have passed, there is an error, or the broker stops. Records
that become durable wake it, without polling. The reply tells a client above its quota to hold back
(`kafscale.api.handling.quotas`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack

import attrs
import trio

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.fetch_sessions import (
    NO_SESSION,
    FetchContext,
    FetchedPartition,
    TopicName,
    distinct_in_turns,
)
from kafscale.api.handling.partitions import (
    ANY_EPOCH,
    NotLeader,
    find_partition,
    led_partition,
    name_of,
    reachable_brokers,
    tell_leader,
)
from kafscale.api.handling.services import Services
from kafscale.cluster.membership.assignment import Leader
from kafscale.cluster.membership.leading.following import Following
from kafscale.cluster.registries.topic_records import Topic
from kafscale.concurrency.turns import STEPS_PER_TURN, Turns
from kafscale.errors import DamagedObject, KafkaError, NotFound, StoreError
from kafscale.log.partition.partition import FetchWaiter, Partition
from kafscale.log.partition.tail import Releasable, Slices
from kafscale.log.read.file_ranges import FileSlice
from kafscale.log.read.reader import LogReader
from kafscale.security.acls import READ_TOPIC
from kafscale.wire import error_codes
from kafscale.wire.messages.records import (
    FetchableTopicResponse,
    FetchAbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

logger = logging.getLogger(__name__)

READ_COMMITTED = 1
NEARBY_LEAST_BYTES = 16 << 20  # in the bucket; for less, two more round trips are not worth it
SHARES_WHILE_SHORT = 16  # of the fetch budget
FIRST_VERSION_WITH_TOPIC_IDS = 13
# Errors of partitions that no session keeps.
LASTING_ERRORS = (
    error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    error_codes.UNKNOWN_TOPIC_ID,
    error_codes.TOPIC_AUTHORIZATION_FAILED,
)


@attrs.define(eq=False, repr=False)
class FetchReply:
    """A response with the memory of its records, to be released after sending."""

    response: FetchResponse
    held: list[Releasable] = attrs.field(factory=list)

    def release(self) -> None:
        _release(self.held)


@attrs.define(eq=False, repr=False)
class _Pass:
    """One look at all partitions of a fetch, which may return `left_bytes` more."""

    left_bytes: int
    committed: bool = False  # end at the last stable offset, and name aborted transactions
    results: list[tuple[FetchedPartition, PartitionData]] = attrs.field(factory=list)
    held: list[Releasable] = attrs.field(factory=list)
    moved: list[tuple[PartitionData, Leader | None]] = attrs.field(factory=list)  # with leaders elsewhere
    size_bytes: int = 0
    has_lasting_error: bool = False
    complete: bool = False  # answer at once, however little there is

    def add(self, slices: Slices | FileSlice, data: PartitionData) -> None:
        data.records = slices.buffers
        if slices.aborted and self.committed:
            told = sorted((transaction.first_offset, transaction.producer_id) for transaction in slices.aborted)
            data.aborted_transactions = [FetchAbortedTransaction(producer_id=who, first_offset=at) for at, who in told]
        self.held.append(slices)
        self.size_bytes += slices.size_bytes
        self.left_bytes -= slices.size_bytes

    def refuse(self, data: PartitionData, exc: KafkaError) -> None:
        data.error_code = exc.code
        self.has_lasting_error |= exc.code in LASTING_ERRORS
        if isinstance(exc, NotLeader):
            self.moved.append((data, exc.leader))
        self.complete = True

    def let_go(self) -> bool:
        """Drop all read records, as others need the memory; tell whether there were any."""
        had_records = bool(self.held)
        _release(self.held)
        if had_records:
            self.results.clear()
        return had_records

    def is_enough(self, min_bytes: int) -> bool:
        return self.complete or self.size_bytes >= min_bytes


async def handle(services: Services, call: Call, request: FetchRequest) -> FetchReply:
    """Read, and wait if there is too little. The caller must release the reply."""
    try:
        context = services.fetch_sessions.resolve(
            request,
            await distinct_in_turns(request),
            uses_topic_ids=call.version >= FIRST_VERSION_WITH_TOPIC_IDS,
            principal=call.peer.principal,
        )
    except KafkaError as exc:
        return FetchReply(FetchResponse(error_code=exc.code))
    quota = services.quotas.consumer
    if quota is not None:  # as in Kafka: more would hold back even a silent client
        request.max_bytes = int(min(request.max_bytes, quota.burst(call)))
        request.min_bytes = min(request.min_bytes, request.max_bytes)
    look = await _read_until_enough(services, call, request, context)
    reply = FetchReply(await _response(context, look), look.held)
    if look.has_lasting_error and context.session is not None:
        services.fetch_sessions.end(context.session)
        reply.response.session_id = NO_SESSION
    for data, leader in look.moved:
        tell_leader(services, call.peer, leader, data, reply.response)
    if quota is not None:
        reply.response.throttle_time_ms = quota.throttle_ms(call, look.size_bytes)
    return reply


async def _read_until_enough(services: Services, call: Call, request: FetchRequest, context: FetchContext) -> _Pass:
    deadline = trio.current_time() + request.max_wait_ms / 1000
    look = await _read_all(services, call, request, context)
    if look.is_enough(request.min_bytes):  # the usual case, without a watch
        return look
    look.let_go()
    waiter = FetchWaiter(0, committed_only=request.isolation_level == READ_COMMITTED)
    with _Watch(services, context, waiter) as watch:
        while True:
            watch.begin(request.min_bytes)
            look = await _read_all(services, call, request, context)
            if look.is_enough(request.min_bytes) or services.draining.is_set() or watch.is_outdated:
                return look
            watch.waiter.became_readable(look.size_bytes)  # it may be enough with the records that came during the look
            had_records = look.let_go()
            with trio.move_on_at(deadline) as timeout:
                await watch.waiter.event.wait()
            if timeout.cancelled_caught:
                return await _read_all(services, call, request, context) if had_records else look


@attrs.define(eq=False, repr=False)
class _Watch:
    services: Services
    context: FetchContext
    waiter: FetchWaiter
    _partitions: list[Partition] = attrs.field(factory=list, init=False)
    _elsewhere: list[FetchedPartition] = attrs.field(factory=list, init=False)  # followed here
    _followed: ExitStack = attrs.field(factory=ExitStack, init=False)

    def __enter__(self) -> _Watch:
        tails = self.services.following.tails
        for fetched in self.context.partitions:
            partition = _find(self.services, fetched)
            if partition is not None:
                partition.waiters.add(self.waiter)
                self._partitions.append(partition)
            elif (topic := _topic_of(self.services, fetched)) is not None:
                partition_id = topic.topic_id, fetched.wanted.partition
                self._elsewhere.append(fetched)
                self._followed.enter_context(tails.watching(partition_id, self.waiter))
        self.services.waiting_fetches.add(self.waiter)
        return self

    @property
    def is_outdated(self) -> bool:
        """Tell whether this broker now leads a followed partition, which would not wake the waiter."""
        return any(_find(self.services, fetched) is not None for fetched in self._elsewhere)

    def begin(self, min_bytes: int) -> None:
        """Reset the waiter before a look at the partitions, so that it misses no records of that time."""
        self.waiter.missing_bytes = min_bytes
        self.waiter.event.clear()

    def __exit__(self, *_: object) -> None:
        for partition in self._partitions:
            partition.waiters.discard(self.waiter)
        self._followed.close()
        self.services.waiting_fetches.discard(self.waiter)


def _release(held: list[Releasable]) -> None:
    for lease in held:
        lease.release()
    held.clear()


def _find(services: Services, fetched: FetchedPartition) -> Partition | None:
    topic = fetched.topic
    topic_id = None if topic.name else topic.topic_id
    return find_partition(services, topic.name, fetched.wanted.partition, topic_id=topic_id)


def _topic_of(services: Services, fetched: FetchedPartition) -> Topic | None:
    topic = fetched.topic
    return services.topics.get(topic.name) if topic.name else services.topics.by_id(topic.topic_id)


async def _read_all(services: Services, call: Call, request: FetchRequest, context: FetchContext) -> _Pass:
    committed = request.isolation_level == READ_COMMITTED
    look = _Pass(left_bytes=min(request.max_bytes, _most_bytes(services)), committed=committed)
    nearby = _nearby(services, call, request)
    turns = Turns()
    await _look_nearby(services, request, context)
    try:
        for fetched in context.partitions:
            await turns.step()
            data = PartitionData(partition_index=fetched.wanted.partition)
            if not committed:
                data.aborted_transactions = None
            look.results.append((fetched, data))
            try:
                partition = _check(services, call, fetched, data)
                if nearby and _should_go(services, call, partition, fetched.wanted.fetch_offset, committed):
                    data.preferred_read_replica = nearby[partition.index % len(nearby)]
                    look.complete = True
                else:
                    await _read_into(look, services.log.reader, partition, fetched.wanted, data)
            except NotLeader as exc:
                if not await _read_nearby(services, request, look, fetched, data):
                    look.refuse(data, exc)
            except KafkaError as exc:
                look.refuse(data, exc)
    except BaseException:
        _release(look.held)
        raise
    return look


def _nearby(services: Services, call: Call, request: FetchRequest) -> Sequence[int]:
    """Return the other brokers in the consumer's rack, unless this broker is there."""
    if not request.rack_id or request.rack_id == services.node.rack:
        return ()
    brokers = reachable_brokers(services, call.peer)
    return [broker.node.node_id for broker in brokers if broker.node.rack == request.rack_id]


def _should_go(services: Services, call: Call, partition: Partition, offset: int, committed: bool) -> bool:
    """Tell whether to send a consumer to a broker of its rack."""
    can_read = services.following.has_tail(partition.partition_id)
    can_read = can_read or _behind_bytes(partition, offset, committed) >= NEARBY_LEAST_BYTES
    return can_read and services.referrals.may_send(call.peer, partition.partition_id)


def _behind_bytes(partition: Partition, offset: int, committed: bool) -> int:
    """Return the bytes in the bucket behind an offset, or NEARBY_LEAST_BYTES or more of them."""
    size_bytes, segments = 0, partition.manifest.segments
    if committed and segments and segments[-1].stable_end <= offset:
        return 0
    for segment in reversed(segments):
        if segment.last_offset < offset or size_bytes >= NEARBY_LEAST_BYTES:
            break
        size_bytes += segment.size_bytes
    return size_bytes


def _follows(services: Services, request: FetchRequest) -> Following | None:
    """Return the follower of other leaders, if the consumer is in this broker's rack."""
    return services.following if request.rack_id and request.rack_id == services.node.rack else None


async def _look_nearby(services: Services, request: FetchRequest, context: FetchContext) -> None:
    following = _follows(services, request)
    if following is not None:
        others = (partition for partition in context.partitions if _find(services, partition) is None)
        found = [
            (topic, partition.wanted.partition)
            for partition in others
            if (topic := _topic_of(services, partition)) is not None
        ]
        await following.look_at(found)


async def _read_nearby(
    services: Services, request: FetchRequest, look: _Pass, fetched: FetchedPartition, data: PartitionData
) -> bool:
    """Read a partition of another leader from the bucket; return False to send the consumer to the leader."""
    following, topic, wanted = _follows(services, request), _topic_of(services, fetched), fetched.wanted
    if following is None or topic is None:
        return False
    for _ in range(2):
        partition = await following.find(topic, wanted.partition, wanted.fetch_offset, committed=look.committed)
        if partition is None or wanted.current_leader_epoch not in (ANY_EPOCH, partition.leader_epoch):
            return False
        data.high_watermark = partition.high_watermark
        data.last_stable_offset = partition.last_stable_offset
        data.log_start_offset = partition.log_start_offset
        try:
            await _read_into(look, services.log.reader, partition, wanted, data)
        except KafkaError:  # known segments have been merged, flushed or deleted since
            following.forget(partition)
        else:
            return True
    return False


def _most_bytes(services: Services) -> int:
    """Return the maximum bytes of one fetch: few while others wait for memory, so that slow clients can't hold all."""
    budget = services.log.reader.ranges.budget
    most = services.settings.limits.fetch_max_bytes
    return min(most, budget.size_bytes // SHARES_WHILE_SHORT) if budget.waiting_count else most


def _check(services: Services, call: Call, fetched: FetchedPartition, data: PartitionData) -> Partition:
    """Return the partition, and set its offsets in the answer. Raises KafkaError to refuse the fetch."""
    topic, wanted = fetched.topic, fetched.wanted
    if services.access.authorizer is not None:
        name = topic.name or name_of(services, topic.topic_id)
        if name:  # an unknown id reveals nothing
            services.access.check(call, READ_TOPIC, name)
    topic_id = None if topic.name else topic.topic_id
    epoch = wanted.current_leader_epoch
    partition = led_partition(services, topic.name, wanted.partition, topic_id=topic_id, leader_epoch=epoch)
    if not partition.log_start_offset <= wanted.fetch_offset <= partition.high_watermark:
        if wanted.fetch_offset > partition.high_watermark and not services.has_led_lately():
            raise NotLeader(None)  # another leader may have written it: the consumer must not begin anew
        raise KafkaError(error_codes.OFFSET_OUT_OF_RANGE)
    data.high_watermark = partition.high_watermark
    data.last_stable_offset = partition.last_stable_offset
    data.log_start_offset = partition.log_start_offset
    return partition


async def _read_into(
    look: _Pass, reader: LogReader, partition: Partition, wanted: FetchPartition, data: PartitionData
) -> None:
    offset, max_bytes = wanted.fetch_offset, min(wanted.partition_max_bytes, look.left_bytes)
    committed = look.committed
    end_offset = data.last_stable_offset if committed else partition.high_watermark
    if offset >= end_offset or (look.size_bytes and max_bytes <= 0):
        return
    slices: Slices | FileSlice | None = reader.read_nowait(partition, offset, max_bytes, committed=committed)
    if slices is None:
        try:
            # A fetch that holds some of the budget must not wait for more: fetches could wait for each other.
            may_wait = not look.size_bytes
            slices = await reader.read(partition, offset, max_bytes, may_wait=may_wait, committed=committed)
        except (NotFound, DamagedObject, StoreError) as exc:
            logger.error("fetch of %s at offset %d failed: %s", partition, offset, exc)
            raise KafkaError(error_codes.KAFKA_STORAGE_ERROR) from exc
    if slices is None:
        look.complete = True  # there are more records, but no room
    elif look.size_bytes and slices.size_bytes > max_bytes:
        slices.release()  # only the first batch of a response may be too large
    elif slices.buffers:
        look.add(slices, data)
        partition.recent_bytes += slices.size_bytes
        partition.traffic.bytes_out.value += slices.size_bytes
        if not slices.is_hole:
            partition.traffic.records_out.value += slices.end_offset - offset
        # as in Kafka: more records follow those of an older segment, so there is no need to wait
        look.complete |= offset < partition.flushed_offset


async def _response(context: FetchContext, look: _Pass) -> FetchResponse:
    response = FetchResponse(session_id=context.session_id)
    topics: dict[TopicName, FetchableTopicResponse] = {}
    for start in range(0, len(look.results), STEPS_PER_TURN):
        if start:
            await _give_way(look)
        for fetched, data in look.results[start : start + STEPS_PER_TURN]:
            if context.incremental and not fetched.is_news(data):
                continue
            topic = topics.get(fetched.topic)
            if topic is None:
                topic = FetchableTopicResponse(topic=fetched.topic.name, topic_id=fetched.topic.topic_id)
                topics[fetched.topic] = topic
                response.responses.append(topic)
            topic.partitions.append(data)
            if context.session is not None:
                fetched.told(data)
                if data.records:
                    context.session.served_first(fetched)
    return response


async def _give_way(look: _Pass) -> None:
    """Let other tasks run; drop all read records if that is cancelled."""
    try:
        await trio.lowlevel.checkpoint()
    except BaseException:
        _release(look.held)
        raise


API = Api(1, "Fetch", 4, 18, FetchRequest, FetchResponse, handle)
