"""Fetch sessions (KIP-227): what a broker remembers, and what an incremental response leaves out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import trio
import trio.testing

from kafscale.api.handling.fetch_sessions import (
    EVICTABLE_AFTER_SECONDS,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MAX_EPOCH,
    NO_SESSION,
    FetchContext,
    FetchSessions,
    distinct,
)
from kafscale.client.connection import Connection
from kafscale.cluster.registries.topics import NewTopic
from kafscale.errors import KafkaError
from kafscale.security.principals import Principal
from kafscale.wire import error_codes
from kafscale.wire.codec import encode
from kafscale.wire.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.records import Record, build_batch
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts

TOPIC = "orders"
FETCH_VERSION = 12  # the last one that names topics
UNKNOWN_PARTITION = 7

Wanted = dict[int, int]  # the fetch offset of each partition


def _request(
    session_id: int,
    session_epoch: int,
    wanted: Wanted | None = None,
    *,
    forgotten: Sequence[int] = (),
    max_bytes: int = 1 << 20,
) -> FetchRequest:
    partitions = [
        FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        for partition, offset in (wanted or {}).items()
    ]
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=max_bytes,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic=TOPIC, partitions=partitions)] if partitions else [],
        forgotten_topics_data=[ForgottenTopic(topic=TOPIC, partitions=list(forgotten))] if forgotten else [],
    )


# ---- the sessions by themselves -------------------------------------------------------------------------------------


def _offsets(context: FetchContext) -> Wanted:
    return {fetched.wanted.partition: fetched.wanted.fetch_offset for fetched in context.partitions}


def _resolve(sessions: FetchSessions, request: FetchRequest, **more: Any) -> FetchContext:
    return sessions.resolve(request, distinct(request), **more)


def _open(sessions: FetchSessions, session_id: int = NO_SESSION) -> int:
    return _resolve(sessions, _request(session_id, INITIAL_EPOCH, {0: 0}), uses_topic_ids=False).session_id


def _error_code(sessions: FetchSessions, session_id: int, session_epoch: int) -> int:
    with pytest.raises(KafkaError) as caught:
        _resolve(sessions, _request(session_id, session_epoch), uses_topic_ids=False)
    return caught.value.code


async def test_a_session_remembers_requested_partitions_and_offsets(autojump_clock: trio.testing.MockClock) -> None:
    sessions = FetchSessions(10)
    opened = _resolve(sessions, _request(NO_SESSION, INITIAL_EPOCH, {0: 10, 1: 20}), uses_topic_ids=False)
    assert opened.session_id != NO_SESSION
    assert not opened.incremental
    same = _resolve(sessions, _request(opened.session_id, 1), uses_topic_ids=False)
    assert same.incremental
    assert _offsets(same) == {0: 10, 1: 20}
    changed = _resolve(sessions, _request(opened.session_id, 2, {1: 21, 2: 30}), uses_topic_ids=False)
    assert _offsets(changed) == {0: 10, 1: 21, 2: 30}
    less = _resolve(sessions, _request(opened.session_id, 3, forgotten=[0, 2, UNKNOWN_PARTITION]), uses_topic_ids=False)
    assert _offsets(less) == {1: 21}


async def test_a_fetch_without_a_session_leaves_nothing_behind(autojump_clock: trio.testing.MockClock) -> None:
    sessions = FetchSessions(10)
    context = _resolve(sessions, _request(NO_SESSION, FINAL_EPOCH, {0: 10}), uses_topic_ids=False)
    assert (context.session_id, context.incremental, _offsets(context)) == (NO_SESSION, False, {0: 10})
    assert not sessions.sessions


async def test_a_wrong_epoch_is_refused_and_changes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    sessions = FetchSessions(10)
    session_id = _open(sessions)
    assert _error_code(sessions, session_id, 2) == error_codes.INVALID_FETCH_SESSION_EPOCH
    _resolve(sessions, _request(session_id, 1), uses_topic_ids=False)
    assert _error_code(sessions, session_id, 1) == error_codes.INVALID_FETCH_SESSION_EPOCH
    _resolve(sessions, _request(session_id, 2), uses_topic_ids=False)


@pytest.mark.parametrize("by_id", [True, False])
async def test_a_session_that_changes_between_names_and_ids_is_refused_and_stays(
    autojump_clock: trio.testing.MockClock, by_id: bool
) -> None:
    """As in Kafka: a client that gets another version after a restart of its broker must begin a new one."""
    sessions = FetchSessions(10)
    session_id = _resolve(sessions, _request(NO_SESSION, INITIAL_EPOCH, {0: 0}), uses_topic_ids=by_id).session_id
    with pytest.raises(KafkaError) as caught:
        _resolve(sessions, _request(session_id, 1), uses_topic_ids=not by_id)
    assert caught.value.code == error_codes.FETCH_SESSION_TOPIC_ID_ERROR
    assert _resolve(sessions, _request(session_id, 1), uses_topic_ids=by_id).session_id == session_id


async def test_an_unknown_session_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    sessions = FetchSessions(10)
    assert _error_code(sessions, _open(sessions) + 1, 1) == error_codes.FETCH_SESSION_ID_NOT_FOUND
    assert _error_code(sessions, NO_SESSION, 1) == error_codes.FETCH_SESSION_ID_NOT_FOUND


async def test_the_final_epoch_closes_a_session(autojump_clock: trio.testing.MockClock) -> None:
    sessions = FetchSessions(10)
    session_id = _open(sessions)
    assert _resolve(sessions, _request(session_id, FINAL_EPOCH), uses_topic_ids=False).session_id == NO_SESSION
    assert _error_code(sessions, session_id, 1) == error_codes.FETCH_SESSION_ID_NOT_FOUND


async def test_the_initial_epoch_replaces_a_session(autojump_clock: trio.testing.MockClock) -> None:
    sessions = FetchSessions(1)
    first = _open(sessions)
    second = _open(sessions, first)
    assert list(sessions.sessions) == [second]


async def test_the_epoch_wraps_around_to_1(autojump_clock: trio.testing.MockClock) -> None:
    sessions = FetchSessions(1)
    session_id = _open(sessions)
    sessions.sessions[session_id].epoch = MAX_EPOCH
    _resolve(sessions, _request(session_id, MAX_EPOCH), uses_topic_ids=False)
    _resolve(sessions, _request(session_id, 1), uses_topic_ids=False)


async def test_none_is_opened_while_all_are_in_use(autojump_clock: trio.testing.MockClock) -> None:
    sessions = FetchSessions(2)
    first, second = _open(sessions), _open(sessions)
    await trio.sleep(EVICTABLE_AFTER_SECONDS - 1)
    context = _resolve(sessions, _request(NO_SESSION, INITIAL_EPOCH, {0: 10}), uses_topic_ids=False)
    assert (context.session_id, context.incremental, _offsets(context)) == (NO_SESSION, False, {0: 10})
    assert list(sessions.sessions) == [first, second]


async def test_the_one_idle_for_longest_makes_room(autojump_clock: trio.testing.MockClock) -> None:
    sessions = FetchSessions(2)
    first, second = _open(sessions), _open(sessions)
    await trio.sleep(EVICTABLE_AFTER_SECONDS)
    _resolve(sessions, _request(first, 1), uses_topic_ids=False)
    third = _open(sessions)
    assert list(sessions.sessions) == [first, third]
    assert sessions.evicted_count == 1
    assert _error_code(sessions, second, 1) == error_codes.FETCH_SESSION_ID_NOT_FOUND
    assert _open(sessions) == NO_SESSION


async def test_no_session_where_none_is_allowed(autojump_clock: trio.testing.MockClock) -> None:
    assert _open(FetchSessions(0)) == NO_SESSION


async def test_a_partition_forgotten_while_it_is_served_stays_out_of_the_session(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sessions = FetchSessions(1)
    context = _resolve(sessions, _request(NO_SESSION, INITIAL_EPOCH, {0: 0, 1: 0}), uses_topic_ids=False)
    assert context.session is not None
    (first, _) = context.partitions
    rest = _resolve(sessions, _request(context.session_id, 1, forgotten=[0]), uses_topic_ids=False)
    context.session.served_first(first)
    assert _offsets(rest) == {1: 0}
    assert _offsets(_resolve(sessions, _request(context.session_id, 2), uses_topic_ids=False)) == {1: 0}


# ---- what a broker answers ------------------------------------------------------------------------------------------


@pytest.fixture
async def running() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(memory_parts()) as broker:
        await broker.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=3)])
        yield broker


@pytest.fixture
async def client(running: MemoryBroker) -> Connection:
    return await running.connect()


async def _produce(client: Connection, partition: int) -> None:
    batch = build_batch([Record(offset=0, timestamp_ms=1_000, key=None, value=b"x", headers=[])])
    data = PartitionProduceData(index=partition, records=memoryview(batch))
    topic = TopicProduceData(name=TOPIC, partition_data=[data])
    response = await client.request(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]), ProduceResponse)
    assert response.responses[0].partition_responses[0].error_code == error_codes.NONE


async def _ask(client: Connection, request: FetchRequest) -> FetchResponse:
    call = client.call(FetchRequest, FetchResponse, version=FETCH_VERSION)
    return await (await client.send_encoded(call, encode(request, FETCH_VERSION))).wait()


def _told(response: FetchResponse) -> list[int]:
    """The partitions in a response, in its order."""
    return [data.partition_index for topic in response.responses for data in topic.partitions]


def _served(response: FetchResponse) -> list[int]:
    """Those of them that have records."""
    return [data.partition_index for topic in response.responses for data in topic.partitions if data.records]


async def test_an_incremental_response_holds_only_changed_partitions(
    client: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    opened = await _ask(client, _request(NO_SESSION, INITIAL_EPOCH, {0: 0, 1: 0}))
    assert opened.session_id != NO_SESSION
    assert _told(opened) == [0, 1]
    nothing = await _ask(client, _request(opened.session_id, 1))
    assert (nothing.error_code, nothing.session_id, _told(nothing)) == (error_codes.NONE, opened.session_id, [])
    await _produce(client, 1)
    assert _served(await _ask(client, _request(opened.session_id, 2))) == [1]
    assert _told(await _ask(client, _request(opened.session_id, 3, {1: 1}))) == []
    assert _told(await _ask(client, _request(opened.session_id, 4, {2: 0}))) == [2]  # an added one is news
    assert _told(await _ask(client, _request(opened.session_id, 5, {0: 0}, forgotten=[1, 2]))) == []
    await _produce(client, 2)
    assert _told(await _ask(client, _request(opened.session_id, 6))) == []


async def test_an_invalid_session_is_refused_in_the_fetch_response(
    client: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    opened = await _ask(client, _request(NO_SESSION, INITIAL_EPOCH, {0: 0}))
    for session_id, epoch, error_code in (
        (opened.session_id, 5, error_codes.INVALID_FETCH_SESSION_EPOCH),
        (opened.session_id + 1, 1, error_codes.FETCH_SESSION_ID_NOT_FOUND),
    ):
        refused = await _ask(client, _request(session_id, epoch))
        assert (refused.error_code, refused.session_id, refused.responses) == (error_code, NO_SESSION, [])


async def test_a_session_by_name_refuses_a_version_that_uses_topic_ids(client: Connection) -> None:
    opened = await _ask(client, _request(NO_SESSION, INITIAL_EPOCH, {0: 0}))
    call = client.call(FetchRequest, FetchResponse, version=FETCH_VERSION + 1)
    reply = await client.send_encoded(call, encode(_request(opened.session_id, 1), FETCH_VERSION + 1))
    assert (await reply.wait()).error_code == error_codes.FETCH_SESSION_TOPIC_ID_ERROR
    assert (await _ask(client, _request(opened.session_id, 1))).error_code == error_codes.NONE


async def test_a_new_high_watermark_or_log_start_is_news_without_records(
    running: MemoryBroker, client: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    for _ in range(2):
        await _produce(client, 0)
        await _produce(client, 1)
    opened = await _ask(client, _request(NO_SESSION, INITIAL_EPOCH, {0: 0, 1: 1}, max_bytes=1))
    assert (_told(opened), _served(opened)) == ([0, 1], [0])
    await _produce(client, 1)
    await _produce(client, 0)
    # now partition 1 is served first, and there is no room left for the records of partition 0
    response = await _ask(client, _request(opened.session_id, 1, {0: 2}, max_bytes=1))
    assert (_told(response), _served(response)) == ([1, 0], [1])
    partition = running.broker.services.log.partition_named(TOPIC, 0)
    assert partition is not None
    partition.delete_records(1)
    response = await _ask(client, _request(opened.session_id, 2, {0: 3, 1: 3}))
    assert (_told(response), _served(response)) == ([0], [])
    assert response.responses[0].partitions[0].log_start_offset == 1


async def test_a_partition_error_is_repeated_and_its_end_is_reported(
    client: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    await _produce(client, 0)
    opened = await _ask(client, _request(NO_SESSION, INITIAL_EPOCH, {0: 5, 1: 0}))
    assert _told(opened) == [0, 1]
    for epoch in (1, 2):
        response = await _ask(client, _request(opened.session_id, epoch))
        assert _told(response) == [0]
        assert response.responses[0].partitions[0].error_code == error_codes.OFFSET_OUT_OF_RANGE
    response = await _ask(client, _request(opened.session_id, 3, {0: 1}))
    assert (_told(response), _served(response)) == ([0], [])
    assert response.responses[0].partitions[0].error_code == error_codes.NONE
    assert _told(await _ask(client, _request(opened.session_id, 4))) == []


async def test_a_served_partition_comes_last_next_time(
    client: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    """Else one busy partition would starve those behind it."""
    for partition in range(3):
        await _produce(client, partition)
    response = await _ask(client, _request(NO_SESSION, INITIAL_EPOCH, {0: 0, 1: 0, 2: 0}, max_bytes=1))
    order = _served(response)
    for epoch in range(1, 6):
        order += _served(await _ask(client, _request(response.session_id, epoch, max_bytes=1)))
    assert order == [0, 1, 2, 0, 1, 2]


# ---- bounds --------------------------------------------------------------------------------------------------------


async def test_a_partition_that_is_named_many_times_is_fetched_once() -> None:
    sessions = FetchSessions(1)
    request = _request(NO_SESSION, FINAL_EPOCH, {0: 5})
    request.topics = [request.topics[0], *_request(0, 0, {0: 6}).topics] * 10
    context = _resolve(sessions, request, uses_topic_ids=False)
    assert [fetched.wanted.fetch_offset for fetched in context.partitions] == [6]


async def test_the_partitions_of_all_sessions_are_bounded(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr("kafscale.api.handling.fetch_sessions.PARTITIONS_MAX_COUNT", 10)
    sessions = FetchSessions(100)
    first = _resolve(sessions, _request(NO_SESSION, INITIAL_EPOCH, dict.fromkeys(range(6), 0)), uses_topic_ids=False)
    assert first.session is not None
    many = _request(NO_SESSION, INITIAL_EPOCH, dict.fromkeys(range(6), 0))
    assert _resolve(sessions, many, uses_topic_ids=False).session is None
    with pytest.raises(KafkaError) as caught:
        _resolve(sessions, _request(first.session_id, 1, dict.fromkeys(range(20), 0)), uses_topic_ids=False)
    assert caught.value.code == error_codes.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.partitions_count == 0
    assert _resolve(sessions, many, uses_topic_ids=False).session is not None
    await trio.sleep(EVICTABLE_AFTER_SECONDS)
    assert _resolve(sessions, many, uses_topic_ids=False).session is not None
    assert (sessions.evicted_count, sessions.partitions_count) == (1, 6)


async def test_sessions_of_one_principal_leave_room_for_others(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr("kafscale.api.handling.fetch_sessions.OF_PRINCIPAL_MAX_COUNT", 10)
    sessions, mallory, alice = FetchSessions(100), Principal("User", "mallory"), Principal("User", "alice")
    six = _request(NO_SESSION, INITIAL_EPOCH, dict.fromkeys(range(6), 0))
    first = _resolve(sessions, six, uses_topic_ids=False, principal=mallory)
    assert first.session is not None
    assert _resolve(sessions, six, uses_topic_ids=False, principal=mallory).session is None
    others = _resolve(sessions, six, uses_topic_ids=False, principal=alice)
    assert others.session is not None
    await trio.sleep(EVICTABLE_AFTER_SECONDS)
    assert _resolve(sessions, six, uses_topic_ids=False, principal=mallory).session is not None
    assert first.session_id not in sessions.sessions, "it has made room for a newer one of its principal"
    assert others.session_id in sessions.sessions


async def test_a_session_with_an_unknown_partition_ends(client: Connection) -> None:
    """With 200,000 unknown partitions each request of 45 bytes was answered with 7.4 MB, from any connection."""
    refused = await _ask(client, _request(NO_SESSION, INITIAL_EPOCH, {0: 0, UNKNOWN_PARTITION: 0}))
    assert refused.session_id == NO_SESSION
    opened = await _ask(client, _request(NO_SESSION, INITIAL_EPOCH, {0: 0}))
    assert opened.session_id != NO_SESSION
    more = await _ask(client, _request(opened.session_id, 1, {UNKNOWN_PARTITION: 0}))
    assert more.session_id == NO_SESSION
    told = [each.error_code for topic in more.responses for each in topic.partitions]
    assert told == [error_codes.UNKNOWN_TOPIC_OR_PARTITION]
    gone = await _ask(client, _request(opened.session_id, 2))
    assert gone.error_code == error_codes.FETCH_SESSION_ID_NOT_FOUND
