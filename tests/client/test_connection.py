"""One connection: negotiation, pipelining, and every way in which it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from kafscale.client.connection import DEFAULT_TIMEOUT_SECONDS, JOIN_BELOW_BYTES, Connection, open_connection
from kafscale.config import Address
from kafscale.errors import BrokerUnavailable, DecodeError, KafkaError, ProtocolError
from kafscale.login.client_protocol import ClientProtocol
from kafscale.wire import codec
from kafscale.wire.messages.cluster import ApiVersionsRequest
from kafscale.wire.messages.groups import HeartbeatRequest, HeartbeatResponse
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from kafscale.wire.messages.records import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tests.devtools.fakes.scripted_broker import ScriptedBroker

ADDRESS = Address("broker", 9092)


def heartbeat(generation_id: int) -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", generation_id=generation_id, member_id="m")


def echo(request: HeartbeatRequest) -> HeartbeatResponse:
    return HeartbeatResponse(throttle_time_ms=request.generation_id)


def by_name(request_class: type) -> object:
    if request_class is ProduceRequest:
        return ProduceRequest(acks=1, timeout_ms=0, topic_data=[TopicProduceData(name="t")])
    if request_class is OffsetCommitRequest:
        return OffsetCommitRequest(group_id="g", member_id="", topics=[OffsetCommitRequestTopic(name="t")])
    topics = [OffsetFetchRequestTopic(name="t")]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])


async def connected(nursery: trio.Nursery, broker: ScriptedBroker) -> Connection:
    ours, theirs = trio.testing.memory_stream_pair()
    nursery.start_soon(broker.serve, theirs)
    return await Connection.over(ours, ADDRESS)


async def test_the_newest_common_version_is_spoken(nursery: trio.Nursery) -> None:
    broker = ScriptedBroker({HeartbeatRequest: echo}, versions={HeartbeatRequest: (0, 2)})
    connection = await connected(nursery, broker)
    assert (await connection.request(heartbeat(7), HeartbeatResponse)).throttle_time_ms == 7
    assert [header.api_version for header in broker.seen] == [ApiVersionsRequest.MAX_VERSION, 2]
    await connection.aclose()


async def test_api_versions_is_retried_at_the_brokers_older_version(nursery: trio.Nursery) -> None:
    broker = ScriptedBroker({HeartbeatRequest: echo}, versions={ApiVersionsRequest: (0, 2)})
    connection = await connected(nursery, broker)
    assert [header.api_version for header in broker.seen] == [ApiVersionsRequest.MAX_VERSION, 2]
    assert (await connection.request(heartbeat(1), HeartbeatResponse)).throttle_time_ms == 1
    await connection.aclose()


async def test_an_api_without_a_common_version_is_named_in_the_error(nursery: trio.Nursery) -> None:
    connection = await connected(nursery, ScriptedBroker({HeartbeatRequest: echo}, {HeartbeatRequest: (90, 99)}))
    with pytest.raises(KafkaError, match="broker:9092 has no version of Heartbeat"):
        await connection.request(heartbeat(1), HeartbeatResponse)
    with pytest.raises(KafkaError, match="no version of Produce"):
        connection.call(ProduceRequest, ProduceResponse)
    await connection.aclose()


@pytest.mark.parametrize(
    ("request_class", "response_class"),
    [
        (ProduceRequest, ProduceResponse),
        (OffsetCommitRequest, OffsetCommitResponse),
        (OffsetFetchRequest, OffsetFetchResponse),
    ],
)
async def test_topics_are_named_although_the_broker_also_speaks_a_version_with_ids_alone(
    nursery: trio.Nursery, request_class: Any, response_class: type
) -> None:
    connection = await connected(nursery, ScriptedBroker({request_class: echo}))
    call = connection.call(request_class, response_class)
    assert call.version == request_class.MAX_VERSION - 1
    assert codec.decode(request_class, call.version, b"".join(codec.encode(by_name(request_class), call.version))) == (
        by_name(request_class)
    )
    assert connection.call(request_class, response_class, version=request_class.MAX_VERSION).version == (
        request_class.MAX_VERSION
    )
    await connection.aclose()


async def test_pipelined_requests_each_get_their_reply(nursery: trio.Nursery) -> None:
    connection = await connected(nursery, ScriptedBroker({HeartbeatRequest: echo}))
    replies = [await connection.send(heartbeat(number), HeartbeatResponse) for number in range(100)]
    order = []

    async def wait(number: int) -> None:
        order.append((await replies[number].wait()).throttle_time_ms)

    async with trio.open_nursery() as waiting:
        for number in reversed(range(100)):
            waiting.start_soon(wait, number)
    assert sorted(order) == list(range(100))
    await connection.aclose()


async def test_a_cancelled_wait_does_not_disturb_the_others(nursery: trio.Nursery) -> None:
    connection = await connected(nursery, ScriptedBroker({HeartbeatRequest: echo}))
    first = await connection.send(heartbeat(1), HeartbeatResponse)
    second = await connection.send(heartbeat(2), HeartbeatResponse)
    with trio.CancelScope() as scope:
        scope.cancel()
        await first.wait()
    assert scope.cancelled_caught
    assert (await second.wait()).throttle_time_ms == 2
    assert (await first.wait()).throttle_time_ms == 1
    await connection.aclose()


async def test_a_request_without_reply_is_not_waited_for(nursery: trio.Nursery) -> None:
    broker = ScriptedBroker({HeartbeatRequest: echo, ProduceRequest: lambda request: None})
    connection = await connected(nursery, broker)
    call = connection.call(ProduceRequest, ProduceResponse)
    body = codec.encode(ProduceRequest(acks=0, timeout_ms=1), call.version)
    await connection.send_encoded(call, body, has_reply=False)
    assert (await connection.request(heartbeat(3), HeartbeatResponse)).throttle_time_ms == 3
    assert isinstance(broker.requests[0], ProduceRequest)
    await connection.aclose()


async def test_a_large_request_arrives_whole(nursery: trio.Nursery) -> None:
    records = bytes(range(256)) * (JOIN_BELOW_BYTES // 128)

    def answer(request: ProduceRequest) -> ProduceResponse:
        assert request.topic_data[0].partition_data[0].records == records
        return ProduceResponse(responses=[TopicProduceResponse(name="checked")])

    connection = await connected(nursery, ScriptedBroker({ProduceRequest: answer}))
    data = PartitionProduceData(index=0, records=memoryview(records))
    request = ProduceRequest(acks=-1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=[data])])
    assert (await connection.request(request, ProduceResponse)).responses[0].name == "checked"
    await connection.aclose()


async def test_a_silent_broker_is_given_up_on(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    connection = await connected(nursery, ScriptedBroker({HeartbeatRequest: lambda request: None}))
    with pytest.raises(BrokerUnavailable, match="no answer from broker:9092 within 30 s"):
        await connection.request(heartbeat(1), HeartbeatResponse)
    assert trio.current_time() == pytest.approx(DEFAULT_TIMEOUT_SECONDS)
    await connection.aclose()


async def test_a_closed_connection_fails_pending_and_later_requests(nursery: trio.Nursery) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    broker = ScriptedBroker({HeartbeatRequest: lambda request: None})
    nursery.start_soon(broker.serve, theirs)
    connection = await Connection.over(ours, ADDRESS)
    replies = [await connection.send(heartbeat(number), HeartbeatResponse) for number in range(2)]
    await theirs.aclose()
    for reply in replies:
        with pytest.raises(BrokerUnavailable, match="the broker at broker:9092 closed the connection"):
            await reply.wait()
    assert connection.is_broken
    with pytest.raises(BrokerUnavailable):
        await connection.send(heartbeat(2), HeartbeatResponse)


async def test_half_a_request_breaks_the_connection() -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()  # a send blocks until the other side has received it
    protocol = ClientProtocol(peer=str(ADDRESS), client_id="c")
    connection = Connection(stream=ours, address=ADDRESS, protocol=protocol)
    call = connection.call(HeartbeatRequest, HeartbeatResponse, version=0)
    async with trio.open_nursery() as sending:
        sending.start_soon(connection.send_encoded, call, [b"body"])
        await theirs.receive_some(3)
        sending.cancel_scope.cancel()
    with pytest.raises(BrokerUnavailable, match="got half a request"):
        await connection.send_encoded(call, [b"body"])
    await theirs.aclose()


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda frame: frame[:4] + b"\x7f\0\0\0" + frame[8:], ProtocolError),  # another correlation id
        (lambda frame: frame + frame, ProtocolError),  # an answer to nothing
        (lambda frame: b"\xff\xff\xff\xff", ProtocolError),  # a negative size
        (lambda frame: b"\0\0\0\2ab", DecodeError),  # shorter than its header
        (lambda frame: b"\0\0\0\6" + frame[4:8] + b"ab", DecodeError),  # a body that is none
    ],
)
async def test_a_reply_that_is_none_is_a_protocol_error(
    nursery: trio.Nursery, spoil: Callable[[bytes], bytes], error: type[Exception]
) -> None:
    class Spoiling(ScriptedBroker):
        def answer(self, frame: memoryview) -> list[Any]:
            answer = b"".join(super().answer(frame))
            return [spoil(answer) if self.requests else answer]

    connection = await connected(nursery, Spoiling({HeartbeatRequest: echo}))

    async def ask_twice() -> None:  # the second answer to one request is noticed with the next one
        await connection.request(heartbeat(1), HeartbeatResponse)
        await connection.request(heartbeat(2), HeartbeatResponse)

    with pytest.raises(error):
        await ask_twice()
    await connection.aclose()


async def test_a_refused_connection_is_a_one_line_error() -> None:
    async with ScriptedBroker({}).listening() as address:
        async with open_connection(address) as connection:
            assert not connection.is_broken
    with pytest.raises(BrokerUnavailable, match=f"^can't connect to {address}: .*; is a broker listening there"):
        async with open_connection(address):
            pass


async def test_several_encoded_requests_go_out_together_and_come_back_in_order(nursery: trio.Nursery) -> None:
    broker = ScriptedBroker({HeartbeatRequest: echo})
    connection = await connected(nursery, broker)
    call = connection.call(HeartbeatRequest, HeartbeatResponse)
    replies = await connection.send_many(call, [codec.encode(heartbeat(each), call.version) for each in range(5)])
    assert [(await reply.wait()).throttle_time_ms for reply in replies] == list(range(5))
    await connection.aclose()
