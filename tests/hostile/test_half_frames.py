"""Frames that are announced and do not come: neither memory nor the chunk pool is theirs, and not for long.

What they had before they were stopped: 200 connections 3.2 GiB by six bytes each, six of them the whole chunk pool for
minutes, and any of them its connection for good.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
import trio

from kafscale.client.client import connect
from kafscale.client.producer import Producer
from kafscale.config import Address
from kafscale.errors import BrokerUnavailable
from kafscale.wire.messages.cluster import ApiVersionsRequest
from kafscale.wire.records import Record
from tests.devtools.processes import timed_loop
from tests.devtools.processes.process import BrokerProcess, broker_process
from tests.hostile.hostile import (
    STANDSTILL_SECONDS,
    announced_frame,
    bystander,
    next_answer,
    raw_connections,
    request_bytes,
)

MIB = 1 << 20
METADATA, PRODUCE = 3, 0
GROWN_MAX_MIB = 200
ASKED = request_bytes(ApiVersionsRequest(client_software_name="hostile", client_software_version="1"), 3)


async def _say(streams: Sequence[trio.SocketStream], data: bytes) -> None:
    """Whatever becomes of them."""

    async def say(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(data)

    async with trio.open_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(say, stream)


async def _ask(streams: Sequence[trio.SocketStream]) -> None:
    """So that they are no strangers any more, of whom nothing large is taken."""
    for stream in streams:
        await stream.send_all(ASKED)
        assert await next_answer(stream) is not None


async def _produce_large(address: Address) -> None:
    """As a good client does: received into the chunk pool."""
    async with connect(address) as client:
        producer = Producer(client=client, topic="bystander")
        for _ in range(3):
            with trio.fail_after(STANDSTILL_SECONDS):
                await producer.send([Record(key=None, value=bytes(900_000), timestamp_ms=1)], partition=0)


async def test_announced_frames_that_do_not_arrive_take_no_memory(broker: BrokerProcess) -> None:
    async with bystander(broker) as seen, raw_connections(broker.kafka, 200) as attackers:
        await _ask(attackers)
        await _say(attackers, announced_frame(16 * MIB, api_key=METADATA))
        await trio.sleep(0.5)
    assert seen.problems(grown_max_mib=GROWN_MAX_MIB) == []


async def test_incomplete_large_frames_share_one_memory_budget() -> None:
    """400 MiB of them, each but for its end."""
    with broker_process("--queued-max-request-bytes", "32MiB", program=timed_loop.PROGRAM) as broker:
        async with bystander(broker) as seen, raw_connections(broker.kafka, 40) as attackers:
            await _ask(attackers)
            with trio.move_on_after(2):
                await _say(attackers, announced_frame(10 * MIB + 1, api_key=METADATA) + bytes(10 * MIB - 2))
        assert seen.problems(grown_max_mib=GROWN_MAX_MIB) == []


async def test_a_stranger_gets_no_large_frame(broker: BrokerProcess) -> None:
    async with raw_connections(broker.kafka, 2) as (metadata, produce):
        await metadata.send_all(announced_frame(16 * MIB, api_key=METADATA))
        await produce.send_all(announced_frame(50 * MIB, api_key=PRODUCE))
        with trio.fail_after(5):
            assert await next_answer(metadata) is None
            assert await next_answer(produce) is None


@pytest.mark.parametrize("here_bytes", [0, 15 * MIB])
async def test_announced_produces_do_not_hold_the_chunk_pool(broker: BrokerProcess, here_bytes: int) -> None:
    """Six, and as many again, with nothing of them or an eighth, which is what gives room in the pool."""
    frame = announced_frame(100 * MIB, api_key=PRODUCE) + bytes(here_bytes)
    async with bystander(broker) as seen, raw_connections(broker.kafka, 12) as attackers:
        await _ask(attackers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_say, attackers, frame)
            await trio.sleep(1)
            await _produce_large(broker.kafka)
            nursery.cancel_scope.cancel()
    assert seen.problems() == []


@pytest.fixture(scope="module")
def impatient() -> Iterator[BrokerProcess]:
    with broker_process(
        "--max-connections=4", *timed_loop.fixed(frame_timeout_seconds=1), program=timed_loop.PROGRAM
    ) as running:
        yield running


@pytest.mark.parametrize("trickles", [False, True])
async def test_a_half_frame_ends_its_connection(trickles: bool, impatient: BrokerProcess) -> None:
    """It counted as activity, and held its slot for good."""
    frame = struct.pack(">ihhih", 1000, METADATA, 1, 7, 0)
    async with raw_connections(impatient.kafka, 4) as attackers:
        await _say(attackers, frame)
        with trio.fail_after(10):
            while trickles and attackers:
                await _say(attackers, b"x")
                await trio.sleep(0.2)
                attackers = [each for each in attackers if not await _has_ended(each)]
            for attacker in attackers:
                assert await next_answer(attacker) is None
        await _connect(impatient.kafka)  # the slots are free again


async def _connect(address: Address) -> None:
    """Ask for something as soon as there is room for one more connection."""
    with trio.fail_after(STANDSTILL_SECONDS):
        while True:
            with suppress(BrokerUnavailable):
                async with connect(address) as client:
                    await client.metadata([])
                    return
            await trio.sleep(0.05)


async def _has_ended(stream: trio.SocketStream) -> bool:
    with trio.move_on_after(0.01):
        return await next_answer(stream) is None
    return False


async def test_a_slow_client_that_comes_on_is_served(impatient: BrokerProcess) -> None:
    """A frame that takes longer than the timeout, at more than the least rate."""
    async with raw_connections(impatient.kafka, 1) as (slow,):
        await _ask([slow])
        topics = b"".join(len(name).to_bytes(2) + name for name in [b"a" * 200] * 400)
        request = struct.pack(">hhih", METADATA, 1, 7, 0) + (400).to_bytes(4) + topics
        sent = len(request).to_bytes(4) + request
        for start in range(0, len(sent), 8000):
            await slow.send_all(sent[start : start + 8000])
            await trio.sleep(0.15)
        with trio.fail_after(10):
            assert await next_answer(slow) is not None
