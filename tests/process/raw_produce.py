"""Produce requests of single batches, whatever is in them, sent without a client's checks."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from kafscale.config import Address
from kafscale.wire import codec, error_codes
from kafscale.wire.frames import parse_response_header
from kafscale.wire.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tests.devtools.external.clients import DEADLINE_SECONDS, PAUSE_SECONDS
from tests.hostile.hostile import next_answer, raw_connection, request_bytes

VERSION = 9
NOT_YET = (error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.NOT_LEADER_OR_FOLLOWER)


def error_codes_of(address: Address, topic: str, batches: Sequence[bytes | bytearray], *, same: bool) -> list[int]:
    """Send each batch to the partition of its place, or all to partition 0, and return the error codes."""
    return trio.run(_error_codes_of, address, topic, batches, same)


async def _error_codes_of(address: Address, topic: str, batches: Sequence[bytes | bytearray], same: bool) -> list[int]:
    async with raw_connection(address) as stream:
        return [await _error_code(stream, topic, 0 if same else index, batch) for index, batch in enumerate(batches)]


async def _error_code(stream: trio.SocketStream, topic: str, index: int, batch: bytes | bytearray) -> int:
    """Send a batch until the broker knows that it leads the partition, as clients do."""
    data = PartitionProduceData(index=index, records=memoryview(batch))
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    request = request_bytes(ProduceRequest(acks=-1, timeout_ms=9000, topic_data=topics), VERSION)
    with trio.fail_after(DEADLINE_SECONDS):
        while True:
            await stream.send_all(request)
            frame = await next_answer(stream)
            assert frame is not None, f"the connection was closed at the batch for partition {index}"
            _, start = parse_response_header(memoryview(frame), flexible_header=True)
            response = codec.decode(ProduceResponse, VERSION, memoryview(frame)[start:])
            code = response.responses[0].partition_responses[0].error_code
            if code not in NOT_YET:
                return code
            await trio.sleep(PAUSE_SECONDS)
